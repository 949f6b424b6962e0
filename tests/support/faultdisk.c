/* A disk that fails: preloaded, it counts every change below one folder and breaks the one that is
 * asked for. A change is a write, a sync, a new or moved name, and a name that goes.
 *
 * cc -shared -fPIC -o faultdisk.so faultdisk.c -ldl
 * LD_PRELOAD=faultdisk.so FAULT_FOLDER=/tmp/x program; fault_arm() begins to count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left = -1, counted = 0; /* left < 0: not armed */
static int how = 0, for_good = 0;          /* how: an errno, or -1: the process ends */

void fault_arm(long number, int kind, int stays) {
    counted = 0;
    how = kind;
    for_good = stays;
    left = number;
}

long fault_count(void) { return counted; }

static int below(const char *path) {
    const char *folder = getenv("FAULT_FOLDER");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static int path_of(int at, const char *name, char *out) {
    char link[64];
    if (name && name[0] == '/') {
        snprintf(out, PATH_MAX, "%s", name);
        return 1;
    }
    if (at == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n < 0) return 0;
    out[n] = 0;
    if (name) snprintf(out + n, PATH_MAX - n, "/%s", name);
    return 1;
}

/* 0: go on; -1: fail, errno is set */
static int change(int at, const char *name) {
    char path[PATH_MAX + 256];
    int saved = errno;
    if (left < 0 || !path_of(at, name, path) || !below(path)) {
        errno = saved;
        return 0;
    }
    counted++;
    long now = left > 0 ? --left : 0; /* the change number `left` fails */
    if (getenv("FAULT_TRACE")) fprintf(stderr, "%ld %s\n", (long)counted, path);
    errno = saved;
    if (now) return 0;
    if (how < 0) _exit(99);
    if (!for_good) left = LONG_MAX;
    errno = how;
    return -1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(write);
    if (left == 1 && how < 0 && size > 1) { /* a crash amid a write leaves a part */
        char path[PATH_MAX + 256];
        if (path_of(fd, NULL, path) && below(path)) real(fd, bytes, size / 2);
    }
    if (change(fd, NULL)) { /* a full disk takes a part */
        int saved = errno;
        if (size > 1 && saved == ENOSPC) real(fd, bytes, size / 2);
        errno = saved;
        return -1;
    }
    return real(fd, bytes, size);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) { REAL(pwrite64); return change(fd, NULL) ? -1 : real(fd, bytes, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { REAL(writev); return change(fd, NULL) ? -1 : real(fd, parts, n); }
ssize_t sendfile64(int out, int in, off64_t *at, size_t n) { REAL(sendfile64); return change(out, NULL) ? -1 : real(out, in, at, n); }
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t n, unsigned f) { REAL(copy_file_range); return change(out, NULL) ? -1 : real(in, a, out, b, n, f); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return change(fd, NULL) ? -1 : real(fd, size); }
int fsync(int fd) { REAL(fsync); return change(fd, NULL) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return change(fd, NULL) ? -1 : real(fd); }
int rename(const char *a, const char *b) { REAL(rename); return change(AT_FDCWD, b) ? -1 : real(a, b); }
int renameat(int i, const char *a, int j, const char *b) { REAL(renameat); return change(j, b) ? -1 : real(i, a, j, b); }
int unlink(const char *a) { REAL(unlink); return change(AT_FDCWD, a) ? -1 : real(a); }
int unlinkat(int i, const char *a, int f) { REAL(unlinkat); return change(i, a) ? -1 : real(i, a, f); }
int rmdir(const char *a) { REAL(rmdir); return change(AT_FDCWD, a) ? -1 : real(a); }
int mkdir(const char *a, mode_t m) { REAL(mkdir); return change(AT_FDCWD, a) ? -1 : real(a, m); }
int open64(const char *a, int flags, ...) {
    REAL(open64);
    va_list rest; va_start(rest, flags); mode_t m = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest);
    return (flags & O_CREAT) && change(AT_FDCWD, a) ? -1 : real(a, flags, m);
}
int open(const char *a, int flags, ...) {
    REAL(open);
    va_list rest; va_start(rest, flags); mode_t m = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest);
    return (flags & O_CREAT) && change(AT_FDCWD, a) ? -1 : real(a, flags, m);
}
