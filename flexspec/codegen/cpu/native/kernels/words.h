// Words in memory that several processes share: one of them counts up in a word, others wait until it has come far enough.
#pragma once
#include <sched.h>
#include <time.h>

#include <cstdint>

namespace flexspec {

static inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether the word reaches `least` within `limit_ns`. A thread that the system has to wake comes late: for `awake_ns` it stays awake
// and only lets others have its core, then it sleeps for `sleep_ns` between looks.
static inline bool reached(const int64_t* word, int64_t least, int64_t awake_ns, int64_t sleep_ns, int64_t limit_ns) {
    constexpr int LOOKS = 100;
    for (int look = 0; look < LOOKS; look++) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= least) return true;
        pause_briefly();
    }
    for (int64_t began = now_ns(), passed = 0; passed < limit_ns; passed = now_ns() - began) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= least) return true;
        if (passed < awake_ns) {
            sched_yield();
        } else {
            timespec pause = {0, (long)sleep_ns};
            nanosleep(&pause, nullptr);
        }
    }
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) >= least;
}

}  // namespace flexspec
