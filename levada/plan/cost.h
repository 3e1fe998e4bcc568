// What a step of a feed costs on several hosts, for each choice of readers. Pure arithmetic: nothing is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "levada/plan/plan.h"

namespace levada {

/// Hosts that are alike. Rank r is on host r / ranks_per_host.
struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  double link_bytes_per_s = 12.5e9;  ///< of each host, in each direction; links share nothing
  double copy_bytes_per_s = 10e9;    ///< how fast a host copies memory
  double message_s = 200e-6;         ///< a rank's work for one message to or from another host, whatever its size
  std::optional<double> storage_bytes_per_s = {};  ///< for all readers together; empty: storage limits nothing
  std::uint64_t stored_bytes = 0;                  ///< what storage gives a reader for one batch
  /// To how many other hosts a host sends a message at most; more are reached by a tree, as joined::route_of() builds
  /// it.
  int degree = 16;

  bool operator==(const Cluster&) const = default;
};

/// The use of one resource by a step, where that is highest.
struct Load {
  std::uint64_t amount = 0;  ///< bytes, or messages
  int host = 0;              ///< the first of those that are used most
  double seconds = 0;
  bool operator==(const Load&) const = default;
};

/// What can limit a feed. Steps follow each other, and all resources work at once: the slowest sets the pace.
enum class Limit : std::uint8_t { link, memory, messages, storage };

/// "link", "memory", "messages", "storage".
std::string_view to_string(Limit limit);

/// One step with one choice of readers.
struct Cost {
  Readers readers;
  std::vector<Readers> same = {};  ///< other choices of which the same ranks read
  int num_readers = 1;
  std::uint64_t read_bytes = 0;      ///< of the batches that all readers make: each as often as it is read
  std::uint64_t crossing_bytes = 0;  ///< that hosts send each other, counted at the sender

  /// Bytes over the busiest link in its busier direction; over link_bytes_per_s. A message crosses to each other host
  /// that has receivers once, and a host that forwards it sends it again.
  Load link;
  /// Bytes that a host writes; over copy_bytes_per_s. The readers' batches, in memory that can be sent; once more what
  /// is sent of a batch with several audiences; the system's copies of what the host sends and receives.
  Load memory;
  /// Messages that the busiest rank sends to and receives from other hosts; times message_s. With several readers,
  /// each reports to the first one in each step, which tells all hosts how far all have come.
  Load messages;
  /// Bytes that storage gives all readers; over storage_bytes_per_s, else 0 s. `host` means nothing.
  Load storage;

  /// The largest of the four times: how often steps can follow each other. The first one takes longer.
  double seconds() const;
  Limit limit() const;
};

/// The cost of one step by `plan`, which was made for `readers` and the cluster's hosts. Takes time in proportion to
/// the number of ranks. Throws InvalidArgument where mesh and cluster differ in the number of ranks.
Cost cost_of(const Plan& plan, const Readers& readers, const Cluster& cluster);

/// The cost of each choice of readers that differs from those before it: one; each data axis, if there are several; dp;
/// host; all; then `others`. Throws InvalidArgument as plan_fan_out() and cost_of() do.
std::vector<Cost> compare_readers(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                                  Divide divide, const Cluster& cluster, const std::vector<Readers>& others = {});

/// Of a training step, the part that a recommended feed may take: links and memory are the training's, too.
constexpr double max_share_of_step = 0.1;

/// The one to choose where training takes `step_s` a step: of those that take at most max_share_of_step of that, the
/// one that reads least, then the one with the fewest readers. Where none is so fast: the fastest. Needs at least one.
const Cost& recommended(std::span<const Cost> costs, double step_s);

}  // namespace levada
