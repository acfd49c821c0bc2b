//! Ownership of a workspace: one holder, by epochs that only grow.

use crate::fixture::{claim, lease, make, said, stale, step, whole};
use ash_model::{Epoch, Timestamp, WorkspaceId};
use ash_store::{Error, Lease, LeaseHolder, Store};
use futures::future::join_all;

contract! {
    only_the_holder_writes
    of_many_claims_from_one_holder_one_wins
    a_claim_names_exactly_the_holder_that_it_takes_over_from
    a_raised_epoch_is_below_every_later_claim
    the_stores_time_goes_forward
}

async fn only_the_holder_writes(store: &dyn Store) {
    let (session, other) = (make(store, "s").await, make(store, "other").await);
    let before = whole(store, session.no).await;
    let mine = lease(&session);
    for wrong in
        [Lease { epoch: Epoch(0), ..mine.clone() }, Lease { epoch: Epoch(2), ..mine.clone() }, lease(&other)]
    {
        stale(store, &wrong, step(session.no, 2, [said("x")])).await;
    }
    assert_eq!(whole(store, session.no).await, before);

    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    let newer = store.claim(claim(session.workspace, "there", &hold)).await.expect("claimed");
    stale(store, &mine, step(session.no, 2, [said("x")])).await;
    assert_eq!(whole(store, session.no).await, before);
    store.append(&newer, step(session.no, 2, [said("x")])).await.expect("the new holder writes");
}

async fn of_many_claims_from_one_holder_one_wins(store: &dyn Store) {
    let session = make(store, "s").await;
    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    let nodes: Vec<String> = (0..16).map(|n| format!("node-{n}")).collect();
    let claims = join_all(nodes.iter().map(|node| store.claim(claim(session.workspace, node, &hold)))).await;
    let won: Vec<(&String, &Lease)> =
        nodes.iter().zip(&claims).filter_map(|(node, claim)| Some((node, claim.as_ref().ok()?))).collect();
    let [(node, lease)] = won[..] else { panic!("{} claims won", won.len()) };
    assert!(claims.iter().all(|claim| matches!(claim, Ok(_) | Err(Error::Stale))));
    assert_eq!(*lease, Lease { workspace: session.workspace, epoch: Epoch(2) });
    let now = store.lease_holder(session.workspace).await.expect("read");
    assert_eq!(now, Some(LeaseHolder { node: node.clone(), epoch: Epoch(2) }));
}

async fn a_claim_names_exactly_the_holder_that_it_takes_over_from(store: &dyn Store) {
    let session = make(store, "s").await;
    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    for wrong in [
        LeaseHolder { epoch: Epoch(0), ..hold.clone() },
        LeaseHolder { epoch: Epoch(2), ..hold.clone() },
        LeaseHolder { node: "elsewhere".into(), ..hold.clone() },
    ] {
        let refused = store.claim(claim(session.workspace, "me", &wrong)).await;
        assert!(matches!(refused, Err(Error::Stale)), "{wrong:?}: {refused:?}");
    }
    assert_eq!(store.lease_holder(session.workspace).await.expect("read"), Some(hold));
}

async fn a_raised_epoch_is_below_every_later_claim(store: &dyn Store) {
    let session = make(store, "s").await;
    let holder = async || store.lease_holder(session.workspace).await.expect("read").expect("held");
    let before = holder().await;
    store.raise_epoch(session.workspace, Epoch(7)).await.expect("raised");
    assert_eq!(holder().await, LeaseHolder { epoch: Epoch(7), ..before.clone() });
    store.raise_epoch(session.workspace, Epoch(3)).await.expect("nothing to raise");
    assert_eq!(holder().await.epoch, Epoch(7), "epochs only grow");
    let refused = store.claim(claim(session.workspace, "there", &before)).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    let claimed = store.claim(claim(session.workspace, "there", &holder().await)).await.expect("claimed");
    assert_eq!(claimed.epoch, Epoch(8));
    stale(store, &lease(&session), step(session.no, 2, [said("x")])).await;
    store.raise_epoch(WorkspaceId::fresh(), Epoch(7)).await.expect("no such workspace");
}

async fn the_stores_time_goes_forward(store: &dyn Store) {
    let first = store.now().await.expect("read");
    let second = store.now().await.expect("read");
    assert!(Timestamp(0) < first && first <= second, "{first} {second}");
}
