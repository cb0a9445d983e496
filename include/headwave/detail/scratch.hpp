// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/detail/memory.hpp>
#include <headwave/error.hpp>

#include <cstdint>

namespace headwave::detail::inline HEADWAVE_ABI {

/// Memory that a thread keeps for its calls: it grows with the largest of them, so that warm calls allocate nothing,
/// and goes with the thread. Use is last in, first out: a call inside a call, in a user's score rule or executor, takes
/// what lies behind.
class scratch_arena {
 public:
  scratch_arena() = default;
  scratch_arena(const scratch_arena&) = delete;
  scratch_arena& operator=(const scratch_arena&) = delete;
  ~scratch_arena() { release(first_); }

  static scratch_arena& of_this_thread() {
    static thread_local scratch_arena arena;
    return arena;
  }

 private:
  friend class scratch_frame;

  // A block's header takes one cache line; its bytes follow.
  struct alignas(64) block {
    block* next;
    std::size_t size, used;
  };

  static void release(block* chain) {
    while (chain) {
      block* const next = chain->next;
      deallocate(static_cast<void*>(chain), sizeof(block) + chain->size);
      chain = next;
    }
  }

  /// bytes is a multiple of 64.
  void* take(std::size_t bytes) {
    if (!current_ || current_->size - current_->used < bytes) {
      block*& next = current_ ? current_->next : first_;
      if (!next || next->size < bytes) {
        constexpr std::size_t smallest = 64 * 1024;
        const std::size_t doubled = current_ ? 2 * current_->size : smallest;
        std::size_t size = bytes > doubled ? bytes : doubled;
        if (size > huge_page / 4 && size < PTRDIFF_MAX) {
          size = (size + sizeof(block) + huge_page - 1) / huge_page * huge_page - sizeof(block);
        }
        void* const memory = allocate(sizeof(block) + size);
        release(next);
        next = ::new (memory) block{nullptr, size, 0};
      }
      current_ = next;
      current_->used = 0;
    }
    void* const start = reinterpret_cast<unsigned char*>(current_ + 1) + current_->used;
    current_->used += bytes;
    return start;
  }

  block* first_ = nullptr;
  block* current_ = nullptr;
};

/// What one call takes from its thread's scratch memory; all of it returns at the end of the frame's life.
class scratch_frame {
 public:
  scratch_frame()
      : arena_(scratch_arena::of_this_thread()), block_(arena_.current_), used_(block_ ? block_->used : 0) {}
  scratch_frame(const scratch_frame&) = delete;
  scratch_frame& operator=(const scratch_frame&) = delete;
  ~scratch_frame() {
    arena_.current_ = block_;
    if (block_) {
      block_->used = used_;
    }
  }

  /// count elements of unknown value, 64-byte aligned. count may be more than any std::size_t, where that has 32 bits.
  /// Errors: the size overflows, or no memory.
  template <class T>
  T* take(std::uint64_t count) {
    const std::size_t elements = count < PTRDIFF_MAX ? static_cast<std::size_t>(count) : PTRDIFF_MAX;
    const std::size_t bytes = checked_product("scratch", elements, sizeof(T));
    return static_cast<T*>(arena_.take((bytes + 63) / 64 * 64));
  }

 private:
  scratch_arena& arena_;
  scratch_arena::block* block_;
  std::size_t used_;
};

}  // namespace headwave::detail::inline HEADWAVE_ABI
