// What the threads of one pass share: a spinning barrier, and task ranges from which idle threads steal.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace flexspec {

static inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins for some 20 microseconds, then sleeps: a waiter whose partner lost its core to another process frees its own.
class Barrier {
   public:
    void reset(int count) {
        count_ = count;
        waiting_.store(0);
    }

    void wait() {
        uint32_t phase = phase_.load();
        if (waiting_.fetch_add(1) + 1 == count_) {
            waiting_.store(0);
            phase_.store(phase + 1);
            if (sleepers_.load() > 0) {
                std::lock_guard<std::mutex> lock(mutex_);
                wake_.notify_all();
            }
            return;
        }
        for (int spins = 0; spins < 2000; spins++) {
            if (phase_.load(std::memory_order_acquire) != phase) return;
            pause_cpu();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return phase_.load() != phase; });
        sleepers_.fetch_sub(1);
    }

   private:
    int count_ = 1;
    alignas(64) std::atomic<int> waiting_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
};

// Tasks [begin, end) owned by one thread: the owner takes from the front, so that it streams through memory in order;
// thieves take from the back.
class alignas(64) TaskRange {
   public:
    void reset(uint32_t begin, uint32_t end) { bounds_.store((uint64_t)end << 32 | begin, std::memory_order_relaxed); }

    int take(bool from_front) {
        uint64_t bounds = bounds_.load(std::memory_order_relaxed);
        for (;;) {
            uint32_t begin = (uint32_t)bounds, end = (uint32_t)(bounds >> 32);
            if (begin >= end) return -1;
            uint64_t next = from_front ? bounds + 1 : bounds - ((uint64_t)1 << 32);
            if (bounds_.compare_exchange_weak(bounds, next, std::memory_order_relaxed)) return (int)(from_front ? begin : end - 1);
        }
    }

   private:
    std::atomic<uint64_t> bounds_{0};
};

class TaskQueue {
   public:
    void reset(TaskRange* ranges, int num_ranges, int num_tasks) {
        ranges_ = ranges;
        num_ranges_ = num_ranges;
        for (int i = 0; i < num_ranges; i++)
            ranges[i].reset((int64_t)num_tasks * i / num_ranges, (int64_t)num_tasks * (i + 1) / num_ranges);
    }

    // The next task of `thread`, or -1 when all are taken.
    int next(int thread) {
        int task = ranges_[thread].take(true);
        for (int i = 1; task < 0 && i < num_ranges_; i++) task = ranges_[(thread + i) % num_ranges_].take(false);
        return task;
    }

   private:
    TaskRange* ranges_ = nullptr;
    int num_ranges_ = 0;
};

}  // namespace flexspec
