// A list of operators, run as one parallel region with a barrier after each phase of each operator.
#pragma once
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "pass.h"
#include "threads.h"

namespace flexspec {

// Zero-filled memory that only grows, aligned for vectors.
class Buffer {
   public:
    void reserve(int64_t bytes) {
        if (bytes <= size_) return;
        data_.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
        if (!data_) throw std::bad_alloc();
        std::memset(data_.get(), 0, bytes);
        size_ = bytes;
    }
    char* data() const { return data_.get(); }

   private:
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    std::unique_ptr<char, Free> data_;
    int64_t size_ = 0;
};

class Op {
   public:
    virtual ~Op() = default;
    // Called before the threads start: what a pass of this size needs.
    virtual void prepare(const Pass&) {}
    virtual int64_t private_bytes(const Pass&) const { return 0; }
    virtual int64_t shared_bytes(const Pass&) const { return 0; }
    virtual int num_phases() const { return 1; }
    virtual int num_tasks(const Pass&, int phase) const = 0;
    // Called by every thread before its first task of a phase.
    virtual void enter(const Pass&, int /*phase*/, char* /*shared*/, char* /*scratch*/) const {}
    virtual void work(const Pass&, int phase, int task, char* shared, char* scratch) const = 0;
};

class Program {
   public:
    Program(bool is_bf16, int num_threads) : is_bf16_(is_bf16), num_threads_(num_threads), scratch_(num_threads) {}

    bool is_bf16() const { return is_bf16_; }
    void add(std::unique_ptr<Op> op) { ops_.push_back(std::move(op)); }

    void run(const FlexspecBatch& batch, const FlexspecCache& cache) {
        pass_.build(batch, cache, num_threads_);
        plan();
#pragma omp parallel num_threads(num_threads_)
        {
#pragma omp single
            barrier_.reset(omp_get_num_threads());
            run_thread(omp_get_thread_num());
        }
    }

   private:
    struct Phase {
        const Op* op;
        int index;
        TaskQueue tasks;
    };

    void plan() {
        phases_.clear();
        std::vector<int> counts;
        int64_t private_bytes = 0, shared_bytes = 0;
        for (auto& op : ops_) {
            op->prepare(pass_);
            private_bytes = std::max(private_bytes, op->private_bytes(pass_));
            shared_bytes = std::max(shared_bytes, op->shared_bytes(pass_));
            for (int i = 0; i < op->num_phases(); i++) {
                int tasks = op->num_tasks(pass_, i);
                if (tasks == 0) continue;
                phases_.push_back({op.get(), i, {}});
                counts.push_back(tasks);
            }
        }
        size_t needed = phases_.size() * num_threads_;
        if (needed > num_ranges_) {
            ranges_.reset(new TaskRange[needed]);
            num_ranges_ = needed;
        }
        for (size_t i = 0; i < phases_.size(); i++) phases_[i].tasks.reset(&ranges_[i * num_threads_], num_threads_, counts[i]);
        for (auto& scratch : scratch_) scratch.reserve(private_bytes);
        shared_.reserve(shared_bytes);
    }

    void run_thread(int thread) {
        char* scratch = scratch_[thread].data();
        for (auto& phase : phases_) {
            phase.op->enter(pass_, phase.index, shared_.data(), scratch);
            for (int task = phase.tasks.next(thread); task >= 0; task = phase.tasks.next(thread))
                phase.op->work(pass_, phase.index, task, shared_.data(), scratch);
            barrier_.wait();
        }
    }

    bool is_bf16_;
    int num_threads_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<Phase> phases_;
    std::unique_ptr<TaskRange[]> ranges_;
    size_t num_ranges_ = 0;
    std::vector<Buffer> scratch_;
    Buffer shared_;
    Pass pass_;
    Barrier barrier_;
};

}  // namespace flexspec
