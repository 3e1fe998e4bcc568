// The cost of a feed's step on several hosts, for each choice of readers. Pure arithmetic: nothing is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "levada/plan/plan.h"

namespace levada {

/// Identical hosts. Rank r is on host r / ranks_per_host.
struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  double link_bytes_per_s = 12.5e9;  ///< per host and direction; hosts share no links
  double copy_bytes_per_s = 10e9;    ///< copy bandwidth of a host
  double message_s = 200e-6;  ///< time that a rank spends on one message to or from another host, whatever its size
  std::optional<double> storage_bytes_per_s = {};  ///< for all readers together; empty: not a limit
  std::uint64_t stored_bytes = 0;                  ///< bytes that a reader reads from storage for one batch
  /// Maximum number of other hosts to which a host sends a message directly; more are reached through a tree, as built
  /// by joined::route_of().
  int degree = 16;

  bool operator==(const Cluster&) const = default;
};

/// The load that a step puts on one kind of resource, at its most loaded instance.
struct Load {
  std::uint64_t amount = 0;  ///< in bytes, or in messages
  int host = 0;              ///< the first of the most loaded hosts
  double seconds = 0;
  bool operator==(const Load&) const = default;
};

/// Resources that can limit a feed. Steps are pipelined and all resources work concurrently, so the slowest one sets
/// the pace.
enum class Limit : std::uint8_t { link, memory, messages, storage };

/// Returns "link", "memory", "messages" or "storage".
std::string_view to_string(Limit limit);

/// The cost of one step with one choice of readers.
struct Cost {
  Readers readers;
  std::vector<Readers> same = {};  ///< other choices that make the same ranks read
  int num_readers = 1;
  std::uint64_t read_bytes = 0;      ///< size of all batches that readers read; a batch counts once per reader
  std::uint64_t crossing_bytes = 0;  ///< bytes that hosts send each other, counted at the sender

  /// Bytes over the busiest link in its busier direction; time at link_bytes_per_s. A message crosses once to each
  /// other host that has receivers; a host that forwards it sends it again.
  Load link;
  /// Bytes that a host writes; time at copy_bytes_per_s. Counts the readers' batches, in sendable memory; the messages
  /// again for a batch with several audiences; and the system's copies of what the host sends and receives.
  Load memory;
  /// Messages between the busiest rank and other hosts, in both directions; time at message_s each. With several
  /// readers, each one reports to the first one in each step, which notifies all hosts of the progress of all readers.
  Load messages;
  /// Bytes that all readers read from storage; time at storage_bytes_per_s, or 0 s if that is empty. `host` is
  /// meaningless.
  Load storage;

  /// Returns the largest of the four times, which is the interval between steps. The first step takes longer.
  double seconds() const;
  Limit limit() const;
};

/// Returns the cost of one step of `plan`, which was made for `readers` and the cluster's hosts. Linear in the number
/// of ranks. Throws InvalidArgument if mesh and cluster differ in the number of ranks.
Cost cost_of(const Plan& plan, const Readers& readers, const Cluster& cluster);

/// Returns the cost of each distinct choice of readers, in this order: one; each data axis, if there are several; dp;
/// host; all; then `others`. Throws InvalidArgument as plan_fan_out() and cost_of() do.
std::vector<Cost> compare_readers(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                                  Divide divide, const Cluster& cluster, const std::vector<Readers>& others = {});

/// The share of a training step that a recommended feed may take, since training uses the same links and memory.
constexpr double max_share_of_step = 0.1;

/// Returns the recommended choice if a training step takes `step_s`: among those that take at most max_share_of_step of
/// that, the one that reads the least, then the one with the fewest readers. Returns the fastest if none is fast
/// enough. Requires at least one.
const Cost& recommended(std::span<const Cost> costs, double step_s);

}  // namespace levada
