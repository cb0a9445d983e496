// SPDX-License-Identifier: MIT
#pragma once

#include "machine.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

/// \file
/// The table that a benchmark program prints, and its main function.

namespace bench {

/// One line for each row: medians over the repetitions, and how far the middle four fifths of them spread.
class table_reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override {
    std::printf("instruction set %s; FMA peak %.1f GFLOP/s float, %.1f double\n", name(hw::active_isa()),
                fma_peak<float>(), fma_peak<double>());
    print_bandwidths("memory", cold_bytes());
    if (cache_bytes(2) != 0) {
      print_bandwidths("L2", cache_bytes(2) / 2);
    }
    std::printf("\n%-34s %10s %9s %8s %8s %6s  %-12s %5s %6s %10s\n", "row", "time", "rate", "unit", "limit", "%",
                "p10 .. p90", "goal", "model", "max error");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    if (runs.front().run_type != Run::RT_Iteration) {
      return;  // Google Benchmark's own aggregates, of which the line already shows what matters
    }
    std::vector<double> times;
    for (const Run& run : runs) {
      times.push_back(run.GetAdjustedRealTime());
    }
    const bool flops = runs.front().counters.count("% peak") != 0;
    const std::vector<double> per_cent = sorted(runs, flops ? "% peak" : "% bandwidth");
    std::sort(times.begin(), times.end());
    std::string spread;
    if (per_cent.size() > 1) {
      spread = text("%.1f", quantile(per_cent, 0.1)) + " .. " + text("%.1f", quantile(per_cent, 0.9));
    }
    std::printf("%-34s %10s %9s %8s %8s %6s  %-12s %5s %6s %10s\n", runs.front().run_name.function_name.c_str(),
                time_text(quantile(times, 0.5)).c_str(), median(runs, flops ? "GFLOP/s" : "GB/s", "%.2f").c_str(),
                flops ? "GFLOP/s" : "GB/s", median(runs, flops ? "peak GFLOP/s" : "bandwidth GB/s", "%.1f").c_str(),
                text("%.1f", quantile(per_cent, 0.5)).c_str(), spread.c_str(), median(runs, "goal", "%.0f").c_str(),
                median(runs, "model", "%.0f").c_str(), median(runs, "max error", "%.1e").c_str());
    std::fflush(stdout);
  }

 private:
  static void print_bandwidths(const char* place, std::size_t bytes) {
    std::printf("%s, %.2f MiB: read %.1f, write %.1f, copy %.1f GB/s\n", place, static_cast<double>(bytes) / (1 << 20),
                read_bandwidth(bytes), write_bandwidth(bytes), copy_bandwidth(bytes));
  }

  /// A counter of every repetition, in ascending order; nothing if the row does not have it.
  static std::vector<double> sorted(const std::vector<Run>& runs, const char* counter) {
    std::vector<double> values;
    for (const Run& run : runs) {
      const auto found = run.counters.find(counter);
      if (found != run.counters.end()) {
        values.push_back(found->second.value);
      }
    }
    std::sort(values.begin(), values.end());
    return values;
  }

  static double quantile(const std::vector<double>& ascending, double fraction) {
    return ascending[static_cast<std::size_t>(fraction * static_cast<double>(ascending.size() - 1) + 0.5)];
  }

  static std::string text(const char* format, double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, format, value);
    return buffer;
  }

  static std::string median(const std::vector<Run>& runs, const char* counter, const char* format) {
    const std::vector<double> values = sorted(runs, counter);
    return values.empty() ? "-" : text(format, quantile(values, 0.5));
  }

  static std::string time_text(double nanoseconds) {
    if (nanoseconds < 1e6) {
      return text("%.2f us", nanoseconds * 1e-3);
    }
    return text("%.2f ms", nanoseconds * 1e-6);
  }
};

/// Runs the rows added so far, under Google Benchmark's command line.
inline int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::AddCustomContext("headwave_isa", name(hw::active_isa()));
  table_reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}

}  // namespace bench
