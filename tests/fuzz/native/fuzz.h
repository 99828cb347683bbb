/* What the fuzzers have in common: numbered cases, numbers drawn from them, and the end of a case that fails.

   Build them with sanitizers; `run.sh` does. Every case is a function of its number, which is printed if it fails. It is
   repeated by giving its number as the seed: the first case of a run has the number of the seed. */

#ifndef TFPIPE_FUZZ_H
#define TFPIPE_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <sanitizer/common_interface_defs.h>

static uint64_t case_number, draw_state;

/* Says which case fails; sanitizers call it before they end the process. */
static void print_case(void) { fprintf(stderr, "This was case %llu.\n", (unsigned long long)case_number); }

/* Ends the process if something does not hold. */
static void demand(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    print_case();
    abort();
}

/* SplitMix64. */
static uint64_t draw(uint64_t below) {
    uint64_t z = draw_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % below;
}

/* Runs cases for `seconds`, from number `seed` on. Returns how many ran. */
static uint64_t run_cases(const char *seconds, const char *seed, void (*run_case)(void)) {
    const time_t end = time(NULL) + atol(seconds);
    const uint64_t first = case_number = strtoull(seed, NULL, 10);
    __sanitizer_set_death_callback(print_case);
    do {
        draw_state = case_number * 0x2545F4914F6CDD1Du + 1;
        run_case();
        case_number++;
    } while (time(NULL) < end);
    return case_number - first;
}

/* Says that nothing was found. */
static void print_end(uint64_t cases, const char *seed, uint64_t count, const char *counted) {
    printf("%llu cases from seed %s, %llu %s, no finding\n", (unsigned long long)cases, seed, (unsigned long long)count,
           counted);
}

#endif
