/* Storage that answers late: every read of a TFRecord file, or of a JPEG, takes DELAY_US longer, without using the
   processor.
   cc -shared -fPIC -O2 -o slow_storage.so slow_storage.c -ldl; LD_PRELOAD=./slow_storage.so DELAY_US=5000 ...

   Bytes that a program announces (posix_fadvise, POSIX_FADV_WILLNEED) come DELAY_US after that, as with a file system that
   reads ahead. Nothing else is in the page cache. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a file, and when they come. */
typedef struct {
  ino_t file;
  off_t begin, end;
  double ready;
} announcement;

enum { KEPT = 4096 };
static announcement announced[KEPT];
static size_t count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static double get_delay(void) {
  static double delay = -1;
  if (delay < 0) delay = getenv("DELAY_US") ? atof(getenv("DELAY_US")) / 1e6 : 0;
  return delay;
}

static int is_slow(int fd) {
  char link[64], path[4096];
  if (get_delay() == 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strstr(path, ".tfrecord") != NULL || strstr(path, ".jpg") != NULL;
}

/* Returns when bytes come that are announced; if they are not, a delay from now. */
static double find_ready(int fd, off_t begin, off_t end) {
  struct stat file;
  double ready = now() + get_delay();
  if (fstat(fd, &file) != 0) return ready;
  pthread_mutex_lock(&mutex);
  for (size_t k = 0; k < count && k < KEPT; k++) {
    const announcement *each = announced + (count - 1 - k) % KEPT;
    if (each->file != file.st_ino || each->begin > begin || each->end < end) continue;
    ready = each->ready;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return ready;
}

static void wait_until(double ready) {
  const double left = ready - now();
  if (left > 0) usleep(left * 1e6);
}

static void announce(int fd, off_t begin, off_t size) {
  struct stat file;
  if (!is_slow(fd) || fstat(fd, &file) != 0) return;
  pthread_mutex_lock(&mutex);
  announced[count++ % KEPT] = (announcement){file.st_ino, begin, begin + size, now() + get_delay()};
  pthread_mutex_unlock(&mutex);
}

int posix_fadvise(int fd, off_t begin, off_t size, int advice) {
  if (advice == POSIX_FADV_WILLNEED) announce(fd, begin, size);
  return 0;
}

int posix_fadvise64(int fd, off64_t begin, off64_t size, int advice) { return posix_fadvise(fd, begin, size, advice); }

/* Every system call of a program by this function takes up to six values; preadv2 has no other way. */
long syscall(long number, ...) {
  static long (*real)(long, ...);
  long value[6];
  va_list values;
  if (!real) real = dlsym(RTLD_NEXT, "syscall");
  va_start(values, number);
  for (int k = 0; k < 6; k++) value[k] = va_arg(values, long);
  va_end(values);
#ifdef SYS_preadv2
  if (number == SYS_preadv2 && is_slow((int)value[0])) {
    errno = EAGAIN;
    return -1;
  }
#endif
  return real(number, value[0], value[1], value[2], value[3], value[4], value[5]);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  if (is_slow(fd)) wait_until(find_ready(fd, at, at + size));
  return real(fd, to, size, at);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  if (is_slow(fd)) wait_until(find_ready(fd, at, at + size));
  return real(fd, to, size, at);
}

ssize_t read(int fd, void *to, size_t size) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  if (is_slow(fd)) wait_until(now() + get_delay());
  return real(fd, to, size);
}
