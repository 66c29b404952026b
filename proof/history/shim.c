/* Loaded before a server's own libraries (LD_PRELOAD): moves its wall clock, has its disk fail, and
 * notes what is written to its data folder and not synced yet, so that a power cut can take it away.
 *
 * PROOF_SHIM_CONTROL  a file of struct control, which the tests change while the server runs
 * PROOF_SHIM_FOLDER   the data folder
 * PROOF_SHIM_JOURNAL  where unsynced writes are noted; see shim.py for how they are read
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t clock_offset_ns; /* added to the wall clock */
    int32_t fail_writes;     /* the next so many writes fail with errno_of_writes; -1: all */
    int32_t errno_of_writes;
    int32_t fail_syncs;      /* the next so many syncs fail with EIO; -1: all */
    int32_t syncs_lie;       /* syncs succeed, and a power cut takes away what they were for */
    int64_t failed;          /* how many calls have failed so */
};

struct entry {
    uint32_t kind; /* 1 write, 2 truncate, 3 sync */
    uint32_t unused;
    uint64_t inode;
    uint64_t offset;     /* of a write; the new size of a truncation */
    uint64_t length;     /* of what was written */
    uint64_t old_length; /* of what was there before, and is noted */
    uint64_t old_size;   /* of the file */
};

static struct control *control;
static char folder[PATH_MAX];
static size_t folder_length;
static int journal = -1;
static uint64_t pending; /* entries that are not synced; they may be of several files */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define INODES 256
static struct { uint64_t inode; uint64_t pending; } files[INODES];

static ssize_t raw_pwrite(int fd, const void *data, size_t length, off_t offset) {
    return syscall(SYS_pwrite64, fd, data, length, offset);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PROOF_SHIM_CONTROL");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) abort();
    close(fd);
    const char *data = getenv("PROOF_SHIM_FOLDER");
    if (data && realpath(data, folder)) folder_length = strlen(folder);
    const char *notes = getenv("PROOF_SHIM_JOURNAL");
    if (notes && folder_length) journal = open(notes, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static int ends_with(const char *path, const char *end) {
    size_t length = strlen(path), of_end = strlen(end);
    return length >= of_end && !strcmp(path + length - of_end, end);
}

/* Tells whether a descriptor is of a regular file in the data folder, and fills in its state. What
 * is made anew at each start, and is never synced, does not count. */
static int is_ours(int fd, struct stat *state) {
    char link[64], path[PATH_MAX];
    if (!folder_length || fd == journal || fstat(fd, state) || !S_ISREG(state->st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= (ssize_t)folder_length || memcmp(path, folder, folder_length)) return 0;
    path[length] = 0;
    return path[folder_length] == '/' && !ends_with(path, "-shm") && !ends_with(path, "/lock") &&
           !ends_with(path, "/reserve");
}

static uint64_t *pending_of(uint64_t inode) {
    for (int at = 0; at < INODES; at++) {
        if (files[at].inode == inode) return &files[at].pending;
        if (!files[at].inode || !files[at].pending) {
            for (int more = at; more < INODES; more++)
                if (files[more].inode == inode) return &files[more].pending;
            files[at].inode = inode;
            files[at].pending = 0;
            return &files[at].pending;
        }
    }
    abort();
}

static void note(struct entry *entry, const void *old, const void *data) {
    size_t size = sizeof *entry + entry->old_length + entry->length;
    char *whole = malloc(size);
    if (!whole) abort();
    memcpy(whole, entry, sizeof *entry);
    memcpy(whole + sizeof *entry, old, entry->old_length);
    memcpy(whole + sizeof *entry + entry->old_length, data, entry->length);
    off_t end = syscall(SYS_lseek, journal, 0, SEEK_END);
    if (raw_pwrite(journal, whole, size, end) != (ssize_t)size) abort();
    free(whole);
}

static void note_write(int fd, struct stat *state, const void *data, size_t length, off_t offset) {
    struct entry entry = {.kind = 1, .inode = state->st_ino, .offset = offset, .length = length,
                          .old_size = state->st_size};
    char *old = malloc(length ? length : 1);
    if (!old) abort();
    /* A descriptor that only writes cannot read: the file is opened once more. */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (reader < 0) abort();
    ssize_t had = syscall(SYS_pread64, reader, old, length, offset);
    syscall(SYS_close, reader);
    entry.old_length = had > 0 ? had : 0;
    note(&entry, old, data);
    free(old);
    (*pending_of(state->st_ino))++;
    pending++;
}

static int fails(int32_t *count, int number) {
    if (!*count) return 0;
    if (*count > 0) (*count)--;
    control->failed++;
    errno = number;
    return 1;
}

static ssize_t put(int fd, const void *data, size_t length, off_t offset, int is_positioned) {
    struct stat state;
    if (!control || !is_ours(fd, &state))
        return is_positioned ? raw_pwrite(fd, data, length, offset)
                             : syscall(SYS_write, fd, data, length);
    pthread_mutex_lock(&lock);
    ssize_t done = -1;
    if (!fails(&control->fail_writes, control->errno_of_writes)) {
        if (!is_positioned) {
            offset = syscall(SYS_lseek, fd, 0, SEEK_CUR);
            if (fcntl(fd, F_GETFL) & O_APPEND) offset = state.st_size;
        }
        if (journal >= 0) note_write(fd, &state, data, length, offset);
        done = is_positioned ? raw_pwrite(fd, data, length, offset)
                             : syscall(SYS_write, fd, data, length);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return put(fd, data, length, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return put(fd, data, length, offset, 1);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return put(fd, data, length, offset, 1);
}

static int cut(int fd, off_t size) {
    struct stat state;
    if (!control || !is_ours(fd, &state)) return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int done = -1;
    if (!fails(&control->fail_writes, control->errno_of_writes)) {
        if (journal >= 0) {
            size_t less = state.st_size > size ? state.st_size - size : 0;
            struct entry entry = {.kind = 2, .inode = state.st_ino, .offset = size,
                                  .old_size = state.st_size};
            char *old = malloc(less ? less : 1), link[64];
            if (!old) abort();
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
            if (reader < 0) abort();
            ssize_t had = less ? syscall(SYS_pread64, reader, old, less, size) : 0;
            syscall(SYS_close, reader);
            entry.old_length = had > 0 ? had : 0;
            note(&entry, old, "");
            free(old);
            (*pending_of(state.st_ino))++;
            pending++;
        }
        done = syscall(SYS_ftruncate, fd, size);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

static int sync_file(int fd, long call) {
    struct stat state;
    if (!control || !is_ours(fd, &state)) return syscall(call, fd);
    pthread_mutex_lock(&lock);
    int done = -1;
    if (!fails(&control->fail_syncs, EIO)) {
        /* What a power cut takes away is taken away afterwards: no disk needs to be waited for. */
        done = 0;
        if (journal >= 0 && !control->syncs_lie) {
            uint64_t *own = pending_of(state.st_ino);
            struct entry entry = {.kind = 3, .inode = state.st_ino};
            pending -= *own;
            *own = 0;
            if (pending)
                note(&entry, "", "");
            else
                syscall(SYS_ftruncate, journal, 0);
        } else if (journal < 0) {
            done = syscall(call, fd);
        }
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd) { return sync_file(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

/* The wall clock */

static int64_t offset_ns(void) { return control ? control->clock_offset_ns : 0; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    /* Through the C library for speed: this is called all the time, and mostly for other clocks. */
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, time);
    if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t now_ns = time->tv_sec * 1000000000LL + time->tv_nsec + offset_ns();
        time->tv_sec = now_ns / 1000000000LL;
        time->tv_nsec = now_ns % 1000000000LL;
    }
    return done;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
