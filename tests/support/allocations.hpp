// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

/// \file
/// Replaces the global operator new and delete, in every form, by ones that count and that refuse on demand. Include it
/// in one file of a program.

namespace support {

/// Calls of any operator new, on all threads.
inline std::atomic<std::size_t> allocation_count{0};

/// Pieces of memory that have been given out and not given back, on all threads.
inline std::atomic<std::ptrdiff_t> live_allocations{0};

/// While true, this thread gets no memory.
inline thread_local bool allocations_refused = false;

/// So many calls from now on this thread gets no memory once, and afterwards as usual. 0: it always gets some.
inline thread_local std::size_t calls_until_failure = 0;

// Not inlined, nor is release: g++ would see malloc meet operator delete, and operator new meet free, and warn.
[[gnu::noinline]] inline void* allocate(std::size_t size, std::size_t alignment) noexcept {
  ++allocation_count;
  const bool fails = calls_until_failure > 0 && --calls_until_failure == 0;
  if (allocations_refused || fails) {
    return nullptr;
  }
  size = (size / alignment + 1) * alignment;
  void* const memory = alignment <= alignof(std::max_align_t) ? std::malloc(size) : std::aligned_alloc(alignment, size);
  live_allocations += memory != nullptr;
  return memory;
}

inline void* allocate_or_throw(std::size_t size, std::size_t alignment = 1) {
  void* const memory = allocate(size, alignment);
  if (!memory) {
    throw std::bad_alloc();
  }
  return memory;
}

[[gnu::noinline]] inline void release(void* memory) noexcept {
  live_allocations -= memory != nullptr;
  std::free(memory);
}

}  // namespace support

// clang-format off
void* operator new(std::size_t n) { return support::allocate_or_throw(n); }
void* operator new[](std::size_t n) { return support::allocate_or_throw(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return support::allocate(n, 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return support::allocate(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) { return support::allocate_or_throw(n, std::size_t(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return support::allocate_or_throw(n, std::size_t(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return support::allocate(n, std::size_t(a)); }
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return support::allocate(n, std::size_t(a)); }
void operator delete(void* p) noexcept { support::release(p); }
void operator delete[](void* p) noexcept { support::release(p); }
void operator delete(void* p, std::size_t) noexcept { support::release(p); }
void operator delete[](void* p, std::size_t) noexcept { support::release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { support::release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { support::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { support::release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { support::release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { support::release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { support::release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { support::release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { support::release(p); }
// clang-format on
