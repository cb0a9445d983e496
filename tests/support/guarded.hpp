// SPDX-License-Identifier: MIT
#pragma once

#include <headwave/tensor.hpp>

#include "support/compare.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

/// \file
/// Memory between inaccessible pages: what reads or writes one element too many there ends the program.

namespace support {

enum class place {
  ordinary,  ///< somewhere on the heap
  end,       ///< the last byte is followed by an inaccessible page
  beginning  ///< the first byte is preceded by one
};

/// Bytes between two inaccessible pages. Access is a matter of whole pages, so only one of the two ends is exact.
class guarded_bytes {
 public:
  guarded_bytes(std::size_t size, place where) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    inner_ = (size + page_ - 1) / page_ * page_;
    void* const memory =
        mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    base_ = static_cast<unsigned char*>(memory);
    protect(PROT_READ | PROT_WRITE);
    data_ = base_ + page_ + (where == place::end ? inner_ - size : 0);
    // Bits of a NaN in every type: what is read before it is written shows.
    std::memset(base_ + page_, 0xff, inner_);
  }
  guarded_bytes(const guarded_bytes&) = delete;
  guarded_bytes& operator=(const guarded_bytes&) = delete;
  ~guarded_bytes() { munmap(base_, inner_ + 2 * page_); }

  unsigned char* data() const { return data_; }
  void forbid_writing() { protect(PROT_READ); }

 private:
  void protect(int access) {
    if (inner_ > 0 && mprotect(base_ + page_, inner_, access) != 0) {
      throw std::bad_alloc();
    }
  }

  std::size_t page_, inner_;
  unsigned char *base_, *data_;
};

/// Aligned memory that ends at an inaccessible page, but for the bytes that alignment takes; who holds it stands in
/// front of it. Not inlined, nor is release_guarded: g++ would see operator new meet another operator delete, and warn.
[[gnu::noinline]] inline void* allocate_guarded(std::size_t size, std::size_t alignment) {
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  auto* const holder = new guarded_bytes(whole + 2 * alignment, place::end);
  unsigned char* const end = holder->data() + whole + 2 * alignment;
  const std::size_t excess = reinterpret_cast<std::uintptr_t>(end) % alignment;
  unsigned char* const data = end - excess - whole;
  std::memcpy(data - sizeof(holder), &holder, sizeof(holder));
  return data;
}
[[gnu::noinline]] inline void release_guarded(void* memory) noexcept {
  if (memory) {
    guarded_bytes* holder = nullptr;
    std::memcpy(&holder, static_cast<unsigned char*>(memory) - sizeof(holder), sizeof(holder));
    delete holder;
  }
}

/// Where a call's operands lie: copies that live as long as this object, all of them in ordinary memory, or each
/// between inaccessible pages of its own, in a given layout. Inputs cannot be written there.
class operand_memory {
 public:
  explicit operand_memory(place where, spacing layout = {.gap = 0}) : where_(where), layout_(layout) {}

  template <class X>
  auto input(const X& x) {
    const auto source = hw::as_view(x);
    using element = hw::element_of<const X>;
    std::shared_ptr<guarded_bytes> bytes;
    const auto view = copy(source, bytes);
    if (bytes) {
      bytes->forbid_writing();
    }
    return hw::tensor_view<const element, decltype(source)::rank()>(view);
  }

  /// Begins as a copy of x, which the call may change.
  template <class X>
  auto output(const X& x) {
    std::shared_ptr<guarded_bytes> bytes;
    return copy(hw::as_view(x), bytes);
  }

  template <class T>
  std::span<const T> list(const std::vector<T>& x) {
    if (where_ == place::ordinary) {
      return x;
    }
    const auto bytes = std::make_shared<guarded_bytes>(x.size() * sizeof(T), where_);
    std::copy(x.begin(), x.end(), reinterpret_cast<T*>(bytes->data()));
    bytes->forbid_writing();
    pieces_.push_back(bytes);
    return {reinterpret_cast<const T*>(bytes->data()), x.size()};
  }

 private:
  template <class X>
  auto copy(const X& source, std::shared_ptr<guarded_bytes>& bytes) {
    constexpr std::size_t rank = X::rank();
    using T = typename X::value_type;
    std::array<hw::index, rank> strides{};
    hw::index lowest = 0, highest = 0;
    hw::index stride = where_ == place::ordinary ? 1 : layout_.last_stride;
    const auto gap = static_cast<hw::index>(where_ == place::ordinary ? 0 : layout_.gap);
    for (std::size_t axis = rank; axis-- > 0;) {
      const auto count = static_cast<hw::index>(source.extent(axis));
      const hw::index last = count > 0 ? stride * (count - 1) : 0;
      strides[axis] = stride;
      (stride < 0 ? lowest : highest) += last;
      stride = std::abs(stride) * (count > 0 ? count : 1) + gap;
      stride = layout_.reversed && where_ != place::ordinary ? -stride : stride;
    }
    // Not an element more than from the lowest to the highest.
    const std::size_t size = source.size() == 0 ? 0 : static_cast<std::size_t>(highest - lowest + 1) * sizeof(T);
    unsigned char* data;
    if (where_ == place::ordinary) {
      const auto memory = std::make_shared<std::vector<unsigned char>>(size + 1);
      data = memory->data();
      pieces_.push_back(memory);
    } else {
      bytes = std::make_shared<guarded_bytes>(size, where_);
      data = bytes->data();
      pieces_.push_back(bytes);
    }
    const hw::tensor_view<T, rank> view(reinterpret_cast<T*>(data) - (size ? lowest : 0), source.extents(), strides);
    for_each_index(source.extents(), [&](const auto& at) { element(view, at) = element(source, at); });
    return view;
  }

  place where_;
  spacing layout_;
  std::vector<std::shared_ptr<void>> pieces_;
};

/// The bytes of a call's results, one result after the other.
class result_bytes {
 public:
  template <class X>
  void add(const X& x) {
    const auto view = hw::as_view(x);
    for_each_index(view.extents(), [&](const auto& at) {
      const auto* const first = reinterpret_cast<const unsigned char*>(&element(view, at));
      bytes_.insert(bytes_.end(), first, first + sizeof(hw::element_of<const X>));
    });
    ends_.push_back(bytes_.size());
  }

  /// Empty if both hold the same.
  std::string differs_from(const result_bytes& other) const {
    if (ends_ != other.ends_) {
      return "other results";
    }
    const auto at = std::mismatch(bytes_.begin(), bytes_.end(), other.bytes_.begin()).first - bytes_.begin();
    if (at == std::ssize(bytes_)) {
      return {};
    }
    const auto result = std::upper_bound(ends_.begin(), ends_.end(), static_cast<std::size_t>(at)) - ends_.begin();
    return "byte " + std::to_string(at) + ", result " + std::to_string(result);
  }

  std::size_t size() const { return bytes_.size(); }

 private:
  std::vector<unsigned char> bytes_;
  std::vector<std::size_t> ends_;
};

}  // namespace support
