// SPDX-License-Identifier: MIT
// The operations of the kernels in plain C++: the readable reference, and what each operation means. Included by
// detail/tiers.hpp, where HEADWAVE_TIER is scalar. To add an ISA, copy this file and fill in the same operations in the
// same order.
//
// vec<T> is one cache line of elements on every ISA: 16 floats or 8 doubles. So packed panels, lane-wise partial sums
// and therefore results do not depend on the width of the machine's registers.

namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER {

// A tile of the product: tile_rows rows of A times tile_panels panels of B stay in registers. With fewer rows it takes
// more panels, so that tile_chains vecs are summed side by side.
inline constexpr int tile_rows = 2;
inline constexpr int tile_panels = 1;
inline constexpr int tile_chains = 1;
// So many exponentials are computed side by side.
inline constexpr int interleaved = 1;
inline constexpr bool has_fma = false;

// A vec is four of the compiler's portable 16-byte vectors, which every target computes with, in registers or not.
template <class T>
struct vec {
  static constexpr index lanes = static_cast<index>(64 / sizeof(T));
  typedef T part_type __attribute__((vector_size(16)));
  static constexpr int part_lanes = static_cast<int>(16 / sizeof(T));
  part_type part[4];
};
// All bits of a lane are set or clear.
template <class T>
struct lane_mask {
  typename vec<bits_type<T>>::part_type part[4];
};

template <class Part>
HEADWAVE_INLINE auto bits_of_part(Part part) {
  using element = std::remove_cvref_t<decltype(part[0])>;
  return __builtin_bit_cast(typename vec<bits_type<element>>::part_type, part);
}
template <class T>
HEADWAVE_INLINE typename vec<T>::part_type part_of_bits(typename vec<bits_type<T>>::part_type bits) {
  return __builtin_bit_cast(typename vec<T>::part_type, bits);
}

// Defines name as a template on T that computes Result<T>, part by part.
#define HEADWAVE_PARTWISE(Result, name, parameters, expression) \
  template <class T> \
  HEADWAVE_INLINE Result<T> name parameters { \
    Result<T> result; \
    HEADWAVE_UNROLL \
    for (int i = 0; i < 4; ++i) { \
      result.part[i] = expression; \
    } \
    return result; \
  }

// ---- memory: any alignment; a load or store touches one whole vec
HEADWAVE_PARTWISE(vec, broadcast, (T x), x - typename vec<T>::part_type{})
template <class T>
HEADWAVE_INLINE vec<T> load(const T* p) {
  vec<T> v;
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    __builtin_memcpy(&v.part[i], p + i * vec<T>::part_lanes, sizeof(v.part[i]));
  }
  return v;
}
template <class T>
HEADWAVE_INLINE void store(T* p, vec<T> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    __builtin_memcpy(p + i * vec<T>::part_lanes, &v.part[i], sizeof(v.part[i]));
  }
}
// target[c * lanes + r] = source[r * stride + c] for r and c in 0 .. lanes-1
template <class T>
HEADWAVE_INLINE void transpose(T* target, const T* source, index stride) {
  for (index r = 0; r < vec<T>::lanes; ++r) {
    for (index c = 0; c < vec<T>::lanes; ++c) {
      target[c * vec<T>::lanes + r] = source[r * stride + c];
    }
  }
}

// ---- arithmetic, the same in every lane
HEADWAVE_PARTWISE(vec, add, (vec<T> a, vec<T> b), a.part[i] + b.part[i])
HEADWAVE_PARTWISE(vec, subtract, (vec<T> a, vec<T> b), a.part[i] - b.part[i])
HEADWAVE_PARTWISE(vec, multiply, (vec<T> a, vec<T> b), a.part[i] * b.part[i])
HEADWAVE_PARTWISE(vec, divide, (vec<T> a, vec<T> b), a.part[i] / b.part[i])
// a * b + c; one rounding where the ISA has an FMA, two here.
HEADWAVE_PARTWISE(vec, multiply_add, (vec<T> a, vec<T> b, vec<T> c), a.part[i] * b.part[i] + c.part[i])
// a * b - c, likewise
HEADWAVE_PARTWISE(vec, multiply_subtract, (vec<T> a, vec<T> b, vec<T> c), a.part[i] * b.part[i] - c.part[i])
// a > b ? a : b, so b where either is NaN.
template <class T>
HEADWAVE_INLINE vec<T> maximum(vec<T> a, vec<T> b) {
  vec<T> result;
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const auto larger = bits_of_part(a.part[i] > b.part[i]);
    result.part[i] = part_of_bits<T>((bits_of_part(a.part[i]) & larger) | (bits_of_part(b.part[i]) & ~larger));
  }
  return result;
}
HEADWAVE_PARTWISE(vec, absolute, (vec<T> v), part_of_bits<T>(bits_of_part(v.part[i]) & ~sign_bit<T>))
HEADWAVE_PARTWISE(vec, copy_sign, (vec<T> magnitude, vec<T> sign_of),
                  part_of_bits<T>((bits_of_part(magnitude.part[i]) & ~sign_bit<T>) |
                                  (bits_of_part(sign_of.part[i]) & sign_bit<T>)))
// Lanes 1, 0, 3, 2, ...
template <class T>
HEADWAVE_INLINE vec<T> swap_neighbours(vec<T> v) {
  vec<T> result;
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    for (int lane = 0; lane < vec<T>::part_lanes; ++lane) {
      result.part[i][lane] = v.part[i][lane ^ 1];
    }
  }
  return result;
}

// ---- exponents
// The values of a part as integers of the same size; each fits an int. Floats are converted four at a time.
template <class T>
HEADWAVE_INLINE typename vec<bits_type<T>>::part_type to_integers(typename vec<T>::part_type part) {
  if constexpr (sizeof(T) == 4) {
    typedef int integers __attribute__((vector_size(16)));
    return __builtin_bit_cast(typename vec<bits_type<T>>::part_type, __builtin_convertvector(part, integers));
  } else {
    typename vec<bits_type<T>>::part_type result{};
    for (int lane = 0; lane < vec<T>::part_lanes; ++lane) {
      result[lane] = static_cast<bits_type<T>>(static_cast<int>(part[lane]));
    }
    return result;
  }
}
// To an integer; for |x| past 2^21 or NaN the result is of no use to any caller.
template <class T>
HEADWAVE_INLINE vec<T> round_to_nearest(vec<T> v) {
  v = add(v, copy_sign(broadcast(T(0.5)), v));
  // At most 2^21 in size, and so is NaN, whose conversion to an integer is undefined.
  v = copy_sign(maximum(subtract(broadcast(T(0)), absolute(v)), broadcast(T(-(1 << 21)))), v);
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      typedef int integers __attribute__((vector_size(16)));
      v.part[i] =
          __builtin_convertvector(__builtin_bit_cast(integers, to_integers<T>(v.part[i])), typename vec<T>::part_type);
    } else {
      for (int lane = 0; lane < vec<T>::part_lanes; ++lane) {
        v.part[i][lane] = static_cast<T>(static_cast<int>(v.part[i][lane]));
      }
    }
  }
  return v;
}
// p * 2^n for an integer n, where p and the product are normal numbers; any bits otherwise.
template <class T>
HEADWAVE_INLINE vec<T> times_power_of_two(vec<T> p, vec<T> n) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    p.part[i] = part_of_bits<T>(bits_of_part(p.part[i]) + (to_integers<T>(n.part[i]) << mantissa_bits<T>));
  }
  return p;
}

// ---- reductions, in one fixed tree: lane i with lane i + 8, then + 4, + 2, + 1
template <class T>
HEADWAVE_INLINE T reduce_add(vec<T> v) {
  T lane[64 / sizeof(T)];
  store(lane, v);
  for (index half = vec<T>::lanes / 2; half > 0; half /= 2) {
    for (index i = 0; i < half; ++i) {
      lane[i] = lane[i] + lane[i + half];
    }
  }
  return lane[0];
}
template <class T>
HEADWAVE_INLINE T reduce_maximum(vec<T> v) {
  T lane[64 / sizeof(T)];
  store(lane, v);
  for (index half = vec<T>::lanes / 2; half > 0; half /= 2) {
    for (index i = 0; i < half; ++i) {
      lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    }
  }
  return lane[0];
}

// ---- masks
HEADWAVE_PARTWISE(lane_mask, less, (vec<T> a, vec<T> b), bits_of_part(a.part[i] < b.part[i]))
// True where either is NaN.
HEADWAVE_PARTWISE(lane_mask, not_less, (vec<T> a, vec<T> b), ~bits_of_part(a.part[i] < b.part[i]))
// By the bits, so that -ffinite-math-only cannot remove it; so is all_finite.
HEADWAVE_PARTWISE(lane_mask, is_negative_infinity, (vec<T> v),
                  bits_of_part(bits_of_part(v.part[i]) == negative_infinity_bits<T>))
template <class T>
HEADWAVE_INLINE bool all_finite(vec<T> v) {
  bool finite = true;
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const auto infinite = bits_of_part((bits_of_part(v.part[i]) & exponent_mask<T>) == exponent_mask<T>);
    for (int lane = 0; lane < vec<T>::part_lanes; ++lane) {
      finite = finite && infinite[lane] == 0;
    }
  }
  return finite;
}
// One byte for each lane; any byte but 0 is true.
template <class T>
HEADWAVE_INLINE void load_mask(const unsigned char* p, lane_mask<T>& mask) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    for (int lane = 0; lane < vec<T>::part_lanes; ++lane) {
      mask.part[i][lane] = *p++ ? ~bits_type<T>(0) : 0;
    }
  }
}
HEADWAVE_PARTWISE(vec, select, (lane_mask<T> mask, vec<T> a, vec<T> b),
                  part_of_bits<T>((bits_of_part(a.part[i]) & mask.part[i]) | (bits_of_part(b.part[i]) & ~mask.part[i])))
// Zero where the mask is false, whatever v holds there.
HEADWAVE_PARTWISE(vec, keep, (lane_mask<T> mask, vec<T> v), part_of_bits<T>(bits_of_part(v.part[i]) & mask.part[i]))

// ---- 64-bit integers (add is above)
HEADWAVE_PARTWISE(vec, bit_and, (vec<T> a, vec<T> b), a.part[i] & b.part[i])
HEADWAVE_PARTWISE(vec, bit_or, (vec<T> a, vec<T> b), a.part[i] | b.part[i])
HEADWAVE_PARTWISE(vec, bit_xor, (vec<T> a, vec<T> b), a.part[i] ^ b.part[i])
/// The products of the lower 32 bits.
HEADWAVE_INLINE vec<std::uint64_t> multiply_lower(vec<std::uint64_t> a, vec<std::uint64_t> b) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    a.part[i] = (a.part[i] & 0xffffffff) * (b.part[i] & 0xffffffff);
  }
  return a;
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_left(vec<std::uint64_t> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    v.part[i] <<= Bits;
  }
  return v;
}
template <int Bits>
HEADWAVE_INLINE vec<std::uint64_t> shift_right(vec<std::uint64_t> v) {
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    v.part[i] >>= Bits;
  }
  return v;
}
HEADWAVE_INLINE vec<double> as_double(vec<std::uint64_t> bits) {
  return __builtin_bit_cast(vec<double>, bits);
}
HEADWAVE_INLINE vec<std::uint64_t> as_bits(vec<double> v) {
  return __builtin_bit_cast(vec<std::uint64_t>, v);
}
HEADWAVE_INLINE lane_mask<double> top_bit(vec<std::uint64_t> v) {
  lane_mask<double> mask;
  HEADWAVE_UNROLL
  for (int i = 0; i < 4; ++i) {
    mask.part[i] = bits_of_part(v.part[i] >= sign_bit<double>);
  }
  return mask;
}

// ---- doubles rounded to the element type; pairs are stored first, second, first, second, ...
template <class T>
HEADWAVE_INLINE void store_rounded(T* p, vec<double> v) {
  for (int i = 0; i < 8; ++i) {
    p[i] = static_cast<T>(v.part[i / 2][i % 2]);
  }
}
template <class T>
HEADWAVE_INLINE void store_pairs_rounded(T* p, vec<double> first, vec<double> second) {
  for (int i = 0; i < 8; ++i) {
    p[2 * i] = static_cast<T>(first.part[i / 2][i % 2]);
    p[2 * i + 1] = static_cast<T>(second.part[i / 2][i % 2]);
  }
}

// ---- 16 numbers of a storage type (numeric.hpp, which says how they are rounded), or 16 integers, as floats and back
template <int ExponentBits>
HEADWAVE_INLINE vec<float> load_converted(const storage_float<ExponentBits>* p) {
  float lane[16];
  for (int i = 0; i < 16; ++i) {
    lane[i] = static_cast<float>(p[i]);
  }
  return load(lane);
}
HEADWAVE_INLINE vec<float> load_converted(const std::int8_t* p) {
  float lane[16];
  for (int i = 0; i < 16; ++i) {
    lane[i] = static_cast<float>(p[i]);
  }
  return load(lane);
}
template <int ExponentBits>
HEADWAVE_INLINE void store_converted(storage_float<ExponentBits>* p, vec<float> v) {
  float lane[16];
  store(lane, v);
  for (int i = 0; i < 16; ++i) {
    p[i] = storage_float<ExponentBits>(lane[i]);
  }
}

#undef HEADWAVE_PARTWISE

}  // namespace headwave::detail::inline HEADWAVE_ABI::HEADWAVE_TIER
