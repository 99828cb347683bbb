/* Storage that answers late: every read of a TFRecord file takes DELAY_US longer, without using the processor.
   cc -shared -fPIC -O2 -o slow_storage.so slow_storage.c -ldl; LD_PRELOAD=./slow_storage.so DELAY_US=5000 ... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_storage(int fd) {
  static long delay_us = -1;
  char link[64], path[4096];
  if (delay_us < 0) delay_us = getenv("DELAY_US") ? atol(getenv("DELAY_US")) : 0;
  if (delay_us == 0) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  if (strstr(path, ".tfrecord")) usleep(delay_us);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  wait_for_storage(fd);
  return real(fd, to, size, at);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  wait_for_storage(fd);
  return real(fd, to, size, at);
}

ssize_t read(int fd, void *to, size_t size) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  wait_for_storage(fd);
  return real(fd, to, size);
}
