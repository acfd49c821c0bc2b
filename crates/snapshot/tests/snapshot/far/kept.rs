//! Remote data is checked before it enters the cache, and cached data is checked before it is used.

use super::*;

/// The check of a block decides, not what is recorded about it.
#[test]
fn cached_parts_with_holes_torn_writes_or_rot_are_fetched_again() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    pair.check(&pair.away(), &tree);
    pair.depot.asked();
    let kept = pair.kept(tree.pack_name());
    let size = std::fs::metadata(&kept).expect("there").len();
    let hurt = |at: u64, length: u64| {
        let file = std::fs::File::options().read(true).write(true).open(&kept).expect("opened");
        let mut bytes = vec![0; length as usize];
        if length == 1 {
            file.read_exact_at(&mut bytes, at).expect("read");
            bytes[0] ^= 0x10;
        }
        file.write_all_at(&bytes, at).expect("written");
    };
    for (what, length) in [("rot", 1), ("a torn write", 4096), ("a hole", 100_000)] {
        for at in [8, size / 3, size / 2] {
            hurt(at, length);
            pair.check(&pair.away(), &tree);
            let asked = pair.depot.asked();
            let read: u64 = asked.reads.iter().map(|part| part.range.end - part.range.start).sum();
            assert!(asked.begun.is_empty() && asked.reads.len() == 1, "{what} at {at}: {asked:?}");
            assert!(read < 3 << 20, "{what} at {at}: only what was hurt, not {read} bytes");
        }
    }
    // Damage the table, which is read first and is checked just the same.
    for at in [size - 1, size - 60] {
        hurt(at, 1);
        pair.check(&pair.away(), &tree);
        assert_eq!(pair.depot.asked().counts(), (1, 1));
    }
    for length in [0, 10, size / 2, size - 1, size + 100] {
        let file = std::fs::File::options().write(true).open(&kept).expect("opened");
        file.set_len(length).expect("cut");
        pair.check(&pair.away(), &tree);
        assert_eq!(pair.depot.asked().begun.len(), 1);
    }
}

/// Changes any bit of a pack, or removes any byte.
#[test]
fn no_altered_remote_content_gets_into_a_workspace() {
    let pair = Pair::new();
    pair.bench.write("dir/kept", "kept in both");
    pair.bench.write("replaced", &"compressible ".repeat(20));
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    let before = contents(&pair.bench.workspace());
    let path = pair.depot.path(tree.pack_name());
    let whole = std::fs::read(&path).expect("read");
    let to = pair.bench.dir.path().join("restored");
    let mut refused = 0;
    let mut attempt = |what: &str| {
        match restore_into(&pair.away(), &tree, &to) {
            Ok(_) => assert_eq!(contents(&to), before, "{what}"),
            Err(error) => {
                assert_eq!(error.kind(), SnapshotErrorKind::Damaged, "{what}: {error}");
                let files = contents(&to).into_iter().filter(|(name, _)| !to.join(name).is_dir());
                let of =
                    |(name, content): &(PathBuf, Vec<u8>)| before.contains(&(name.clone(), content.clone()));
                assert!(files.clone().all(|file| of(&file)), "{what}: a file that never was");
                refused += 1;
            }
        }
        std::fs::remove_dir_all(&to).expect("removed");
        // The damaged parts in the cache do not matter once the remote pack is intact again.
        std::fs::write(&path, &whole).expect("written");
        pair.check(&pair.away(), &tree);
        pair.forget_everything();
    };
    for at in 0..whole.len() {
        let mut hurt = whole.clone();
        hurt[at] ^= 1 << (at % 8);
        std::fs::write(&path, hurt).expect("written");
        attempt(&format!("a bit of byte {at}"));
    }
    // The pack claims to be sealed; no hash covers that flag.
    let mut sealed = whole.clone();
    sealed[whole.len() - 45] = 1;
    std::fs::write(&path, sealed).expect("written");
    attempt("another footer");
    for length in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..length]).expect("written");
        attempt(&format!("cut to {length} bytes"));
    }
    assert!(refused > whole.len() / 2, "{refused}");
}

#[test]
fn fetched_parts_are_checked_before_they_are_cached() {
    let pair = Pair::new();
    std::fs::write(pair.bench.at("large"), noise(6 << 20, 1)).expect("written");
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    let path = pair.depot.path(tree.pack_name());
    let whole = std::fs::read(&path).expect("read");
    let mut hurt = whole.clone();
    hurt[3 << 20] ^= 1;
    std::fs::write(&path, hurt).expect("written");
    let repo = pair.away();
    let refused = repo.fetch(&tree, &["workspace"], &mut |_| {}).expect_err("damaged");
    assert_eq!(refused.kind(), SnapshotErrorKind::Damaged);
    let kept = std::fs::read(pair.kept(tree.pack_name())).expect("read");
    assert_eq!((kept[1 << 20], kept[3 << 20]), (whole[1 << 20], 0), "what is whole, and nothing else");
    std::fs::write(&path, &whole).expect("written");
    pair.depot.asked();
    pair.check(&repo, &tree);
    assert_eq!(pair.depot.asked().reads.len(), 1, "what was whole is not read again");
}

#[test]
fn another_pack_under_this_name_is_refused() {
    let pair = Pair::new();
    pair.bench.write("file", "one");
    let one = pair.bench.take().tree;
    pair.bench.write("file", "two");
    let two = pair.bench.take().tree;
    pair.send(&one);
    pair.send(&two);
    std::fs::copy(pair.depot.path(two.pack_name()), pair.depot.path(one.pack_name())).expect("copied");
    let refused = pair.away().verify(&one).expect_err("another");
    assert!(matches!(&refused, Error::Damaged { what, .. } if what.contains("another pack")), "{refused}");
}

#[test]
fn unreachable_packs_are_not_damaged_and_missing_ones_are() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let tree = pair.bench.take().tree;
    let to = pair.bench.dir.path().join("in vain");
    let missing = restore_into(&pair.away(), &tree, &to).expect_err("it is nowhere");
    assert!(matches!(&missing, Error::Damaged { what, .. } if what.contains("not there")), "{missing}");
    pair.send(&tree);
    let mut after = 0;
    loop {
        std::fs::remove_dir_all(&to).expect("removed");
        pair.forget_everything();
        pair.depot.set(Weather::Worse(after));
        let repo = pair.away();
        let done = restore_into(&repo, &tree, &to);
        if done.is_ok() {
            break;
        }
        let error = done.expect_err("it cannot be reached");
        assert!(matches!(&error, Error::Far { pack, .. } if pack == tree.pack_name()), "{error}");
        assert_ne!(error.kind(), SnapshotErrorKind::Damaged);
        assert!(contents(&to).iter().all(|(name, _)| to.join(name).is_dir()), "no file was begun");
        let all = repo.verify_all(std::slice::from_ref(&tree), VerifyDepth::Data, &mut |_| {});
        assert!(matches!(all, Err(Error::Far { .. })), "the error does not call it damaged: {all:?}");
        // The same repository continues once the store is reachable again.
        pair.depot.set(Weather::Fine);
        pair.check(&repo, &tree);
        after += 1;
    }
    assert!(after >= 3, "the beginning, the table and contents: {after}");
}

/// Crashes at each step that writes to the cache. Afterwards the cache works, and still saves reads.
#[test]
fn a_death_at_any_step_leaves_a_cache_that_works() {
    let pair = Pair::new();
    pair.bench.write("dir/file", "text");
    std::fs::write(pair.bench.at("large"), noise(5 << 20, 1)).expect("written");
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    let to = pair.bench.dir.path().join("dying");
    for step in 0.. {
        let death = SimulatedCrash::at_step(step);
        let died = restore_into(&pair.away_with(DiskWriter::crashing(death.clone()), PLENTY), &tree, &to);
        std::fs::remove_dir_all(&to).expect("removed");
        pair.check(&pair.away(), &tree);
        pair.forget_everything();
        if death.steps() <= step {
            died.expect("no fail point was reached");
            assert!(step > 12, "{step} steps");
            return;
        }
        assert!(died.is_err(), "step {step}");
    }
}

#[test]
fn the_cache_keeps_its_size_and_the_parts_used_last() {
    let pair = Pair::new();
    let trees: Vec<TreeId> = (0..4)
        .map(|number| {
            std::fs::write(pair.bench.at("file"), noise(1 << 20, number)).expect("written");
            pair.bench.take().tree
        })
        .collect();
    trees.iter().for_each(|tree| pair.send(tree));
    let most = 5 << 19;
    let repo = pair.away_with(DiskWriter::default(), most);
    let kept = || trees.iter().map(|tree| pair.kept(tree.pack_name()).exists()).collect::<Vec<_>>();
    pair.check(&repo, &trees[0]);
    pair.check(&repo, &trees[1]);
    assert_eq!(kept(), [true, true, false, false]);
    let cached = repo.remote_cache_size().expect("known");
    assert!(cached > 2 << 20 && cached <= most, "{cached}");
    // Its cached file was used again, so it is now newer than the second one.
    let repo = pair.away_with(DiskWriter::default(), most);
    pair.check(&repo, &trees[0]);
    pair.check(&repo, &trees[2]);
    assert_eq!(kept(), [true, false, true, false]);
    assert!(repo.remote_cache_size().expect("known") <= most);
    // A smaller limit applies as soon as the repository opens.
    let repo = pair.away_with(DiskWriter::default(), 3 << 19);
    assert_eq!(kept(), [false, false, true, false]);
    // A pack larger than the whole cache can still be restored.
    let repo_of_nothing = pair.away_with(DiskWriter::default(), 0);
    pair.check(&repo_of_nothing, &trees[3]);
    assert_eq!((kept(), repo.remote_cache_size().expect("known")), (vec![false; 4], 0));
}

/// Reading block by block trims the cache too, though not after each block.
#[test]
fn the_cache_does_not_grow_without_end_while_it_is_only_read() {
    let pair = Pair::new();
    let trees: Vec<TreeId> = (0..4)
        .map(|number| {
            std::fs::write(pair.bench.at("file"), noise(20 << 20, number)).expect("written");
            pair.bench.take().tree
        })
        .collect();
    trees.iter().for_each(|tree| pair.send(tree));
    let repo = pair.away_with(DiskWriter::default(), 30 << 20);
    let cached = trees.iter().map(|tree| {
        repo.verify(tree).expect("whole");
        repo.remote_cache_size().expect("known") >> 20
    });
    let cached: Vec<u64> = cached.collect();
    assert!(cached[2] >= 60 && cached[3] <= 40, "{cached:?} MiB");
}

/// The cache keeps a pack while a reader uses it.
#[test]
fn parts_in_use_stay_cached_until_their_reader_is_done() {
    let pair = Pair::new();
    std::fs::write(pair.bench.at("file"), noise(6 << 20, 1)).expect("written");
    let one = pair.bench.take().tree;
    std::fs::write(pair.bench.at("file"), noise(6 << 20, 2)).expect("written");
    let two = pair.bench.take().tree;
    pair.send(&one);
    pair.send(&two);
    let repo = pair.away_with(DiskWriter::default(), 0);
    let mut others = 0;
    repo.fetch(&one, &["workspace"], &mut |_| {
        if pair.kept(one.pack_name()).exists() && others == 0 {
            others += 1;
            pair.check(&repo, &two);
            assert!(pair.kept(one.pack_name()).exists() && !pair.kept(two.pack_name()).exists());
        }
    })
    .expect("fetched");
    assert_eq!((others, pair.kept(one.pack_name()).exists()), (1, false));
}

/// Collection on another machine replaces a pack after this one has read its table.
#[test]
fn a_pack_that_was_replaced_far_away_is_no_damage() {
    let pair = Pair::new();
    let (first, second) = shrunk(&pair);
    let repo = pair.away();
    repo.list(&first, "workspace").expect("the table is known");
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    pair.bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    pair.depot.put(&pair.bench.repo, first.pack_name());
    // Destroy the cached content of the larger pack, and keep only its end.
    let kept = std::fs::File::options().write(true).open(pair.kept(first.pack_name())).expect("opened");
    kept.write_all_at(&vec![0; 2 << 20], 8).expect("written");
    pair.check(&repo, &second);
    pair.check(&pair.away(), &second);
}

/// The pack becomes shorter between the read of its beginning and the read of the rest.
#[test]
fn a_pack_that_is_replaced_just_now_is_no_damage() {
    let pair = Pair::new();
    let (first, second) = shrunk(&pair);
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    pair.bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    pair.depot.put(&pair.bench.repo, first.pack_name());
    let ways: [&dyn Fn(&Repo); 2] =
        [&|repo| pair.check(repo, &second), &|repo| repo.verify(&second).expect("whole")];
    for way in ways {
        // With this size only the end of the rest would be read.
        pair.depot.remember(first.pack_name(), 5 << 20);
        way(&pair.away());
        let asked = pair.depot.asked().begun;
        assert_eq!(asked.iter().filter(|pack| *pack == first.pack_name()).count(), 2);
        pair.forget_everything();
    }
}

/// The cache takes as much disk space as was read, regardless of the length of the pack.
#[test]
fn only_the_needed_parts_of_a_large_pack_are_cached() {
    let pair = Pair::new();
    std::fs::write(pair.bench.at("large"), noise(40 << 20, 1)).expect("written");
    pair.bench.write("small", "text");
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    let repo = Arc::new(pair.away());
    let Some(SnapshotEntry::File { size: 4, .. }) =
        repo.read(&tree, "workspace", &rel("small")).expect("read")
    else {
        panic!("a file");
    };
    let kept = pair.kept(tree.pack_name()).metadata().expect("there");
    assert!(kept.len() > 40 << 20 && kept.blocks() * 512 < 4 << 20, "{} blocks", kept.blocks());
    assert_eq!(repo.remote_cache_size().expect("known"), kept.blocks() * 512);
}
