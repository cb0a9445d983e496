// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/config.hpp>

#include <cstddef>
#include <new>

namespace headwave::detail {

/// Blocks of at least this size begin at a multiple of it, and the operating system is asked for pages as large: a
/// product reads weights and activations from so many small pages that looking these up takes a tenth of its time.
inline constexpr std::size_t huge_page = std::size_t(1) << 21;

#if defined(__linux__)
// madvise, under another name: its own declaration differs between C libraries, and <sys/mman.h> brings macros.
extern "C" int headwave_advise_memory(void*, std::size_t, int) noexcept __asm__("madvise");
#endif

HEADWAVE_INLINE std::align_val_t alignment_of_block(std::size_t bytes) {
  return std::align_val_t(bytes >= huge_page ? huge_page : std::size_t(64));
}

/// Memory of unknown content, aligned to a cache line at least. Errors: no memory (std::bad_alloc).
HEADWAVE_INLINE void* allocate(std::size_t bytes) {
  void* const memory = ::operator new(bytes, alignment_of_block(bytes));
#if defined(__linux__)
  if (bytes >= huge_page) {
    constexpr int use_huge_pages = 14;  // MADV_HUGEPAGE, on every architecture
    static_cast<void>(headwave_advise_memory(memory, bytes, use_huge_pages));
  }
#endif
  return memory;
}

/// bytes: as they were asked for.
HEADWAVE_INLINE void deallocate(void* memory, std::size_t bytes) {
  ::operator delete(memory, alignment_of_block(bytes));
}

}  // namespace headwave::detail
