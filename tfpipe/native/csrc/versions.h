/* Two versions of a function from one source: for AVX2, and for every processor. Each call takes the one that this
   processor has. (`target_clones` would do the same, but not in every clang, and not with every C library.) */

#ifndef TFPIPE_VERSIONS_H
#define TFPIPE_VERSIONS_H

#define INLINE __attribute__((always_inline)) static inline

/* CHOOSE defines the function tfpipe_NAME by the functions NAME_by_avx2 and NAME; DEFINE makes the first of them from the
   second, an inline function. DEFINE_INT does so for one with a result, and the function is choose_NAME. */
#if defined(__x86_64__) && !defined(TFPIPE_ONE_VERSION)
#define TFPIPE_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#define TFPIPE_HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
#define CHOOSE(name, parameters, arguments) \
    void tfpipe_##name parameters {         \
        if (TFPIPE_HAS_AVX2)                \
            name##_by_avx2 arguments;       \
        else                                \
            name arguments;                 \
    }
#define DEFINE(name, parameters, arguments)                           \
    TFPIPE_AVX2 static void name##_by_avx2 parameters { name arguments; } \
    void tfpipe_##name parameters;                                    \
    CHOOSE(name, parameters, arguments)
#define DEFINE_INT(name, parameters, arguments)                                 \
    TFPIPE_AVX2 static int name##_by_avx2 parameters { return name arguments; } \
    static int choose_##name parameters { return TFPIPE_HAS_AVX2 ? name##_by_avx2 arguments : name arguments; }
#else
#define DEFINE_INT(name, parameters, arguments) \
    static int choose_##name parameters { return name arguments; }
#define CHOOSE(name, parameters, arguments) \
    void tfpipe_##name parameters;          \
    void tfpipe_##name parameters { name arguments; }
#define DEFINE CHOOSE
#endif

#endif
