#include "levada/plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"

namespace levada {
namespace {

constexpr EnumName<Limit> limit_names[] = {
    {"link", Limit::link}, {"memory", Limit::memory}, {"messages", Limit::messages}, {"storage", Limit::storage}};

/// The load of hosts and ranks in one step.
class Traffic {
 public:
  explicit Traffic(const Cluster& cluster)
      : cluster_(cluster),
        sent_(static_cast<std::size_t>(cluster.hosts)),
        received_(sent_.size()),
        written_(sent_.size()),
        messages_(sent_.size() * static_cast<std::size_t>(cluster.ranks_per_host)) {}

  void write(int rank, std::uint64_t bytes) { written_[host_of(rank)] += bytes; }

  /// Adds a message of `bytes` to `receivers`, ascending.
  template <typename Receivers>
  void send(int from, const Receivers& receivers, std::uint64_t bytes) {
    find_forwarders(from, receivers);
    const auto degree = static_cast<std::size_t>(cluster_.degree);
    for (std::size_t i = 0; i < forwarders_.size(); ++i) {
      const std::size_t begin = std::min(forwarders_.size(), i * degree + 1);
      const std::size_t children = std::min(forwarders_.size(), begin + degree) - begin;
      const auto host = host_of(forwarders_[i]);
      const std::uint64_t arrivals = i == 0 ? 0 : 1;
      sent_[host] += children * bytes;
      received_[host] += arrivals * bytes;
      written_[host] += (children + arrivals) * bytes;
      messages_[static_cast<std::size_t>(forwarders_[i])] += children + arrivals;
    }
  }

  /// Adds the messages by which several readers agree on their progress: each reports to the first one, which notifies
  /// every host.
  void agree(const std::vector<int>& readers) {
    for (const int reader : readers) send(reader, std::span(readers.data(), 1), 0);
    std::vector<int> heads;
    for (int host = 0; host < cluster_.hosts; ++host) heads.push_back(host * cluster_.ranks_per_host);
    send(readers.front(), heads, 0);
  }

  std::uint64_t crossing_bytes() const {
    std::uint64_t bytes = 0;
    for (const std::uint64_t each : sent_) bytes += each;
    return bytes;
  }
  Load link() const {
    const Load sent = busiest(sent_, 1, 1 / cluster_.link_bytes_per_s);
    const Load received = busiest(received_, 1, 1 / cluster_.link_bytes_per_s);
    return received.amount > sent.amount ? received : sent;
  }
  Load memory() const { return busiest(written_, 1, 1 / cluster_.copy_bytes_per_s); }
  Load messages() const { return busiest(messages_, cluster_.ranks_per_host, cluster_.message_s); }

 private:
  std::size_t host_of(int rank) const { return static_cast<std::size_t>(rank / cluster_.ranks_per_host); }

  /// Finds the sender and the first receiver on each other host. The children of entry i begin at i * degree + 1.
  template <typename Receivers>
  void find_forwarders(int from, const Receivers& receivers) {
    forwarders_ = {from};
    std::size_t last = host_of(from);
    for (const int rank : receivers) {
      const auto host = host_of(rank);
      if (host == last || host == host_of(from)) continue;
      forwarders_.push_back(rank);
      last = host;
    }
  }

  static Load busiest(const std::vector<std::uint64_t>& amounts, int a_host, double seconds_each) {
    const auto max_at = std::max_element(amounts.begin(), amounts.end());
    return {.amount = *max_at,
            .host = static_cast<int>(max_at - amounts.begin()) / a_host,
            .seconds = static_cast<double>(*max_at) * seconds_each};
  }

  const Cluster& cluster_;
  std::vector<std::uint64_t> sent_, received_, written_;  ///< bytes per host
  std::vector<std::uint64_t> messages_;                   ///< by rank
  std::vector<int> forwarders_;
};

void check(const Cluster& cluster, const Mesh& mesh) {
  if (std::int64_t{cluster.hosts} * cluster.ranks_per_host == mesh.size()) return;
  throw InvalidArgument(fmt::format("the mesh '{}' has {} ranks, but {} hosts with {} ranks each have {}",
                                    mesh.to_string(), mesh.size(), cluster.hosts, cluster.ranks_per_host,
                                    std::int64_t{cluster.hosts} * cluster.ranks_per_host));
}

std::vector<std::uint64_t> bytes_by_audience(const Plan& plan) {
  std::vector<std::uint64_t> bytes(plan.audiences.size(), 0);
  for (const Move& move : plan.moves) bytes[static_cast<std::size_t>(move.audience)] += move.bytes;
  return bytes;
}

std::vector<Readers> usual_choices(const Mesh& mesh) {
  std::vector<Readers> choices{{Readers::Kind::one}};
  if (mesh.data_axes().size() > 1) {
    for (const std::string& axis : mesh.data_axes()) choices.push_back({Readers::Kind::axes, {axis}});
  }
  if (!mesh.data_axes().empty()) choices.push_back({Readers::Kind::axes, {"dp"}});
  if (!mesh.data_axes().empty()) choices.push_back({Readers::Kind::spread});
  choices.push_back({Readers::Kind::host});
  choices.push_back({Readers::Kind::all});
  return choices;
}

}  // namespace

std::string_view to_string(Limit limit) {
  return enum_name(limit, limit_names);
}

double Cost::seconds() const {
  return std::max({link.seconds, memory.seconds, messages.seconds, storage.seconds});
}

Limit Cost::limit() const {
  if (link.seconds == seconds()) return Limit::link;
  if (memory.seconds == seconds()) return Limit::memory;
  return messages.seconds == seconds() ? Limit::messages : Limit::storage;
}

Cost cost_of(const Plan& plan, const Readers& readers, const Cluster& cluster) {
  check(cluster, plan.mesh);
  const std::uint64_t batch_bytes = bytes_of_batch(plan.fields);
  const auto message_bytes = bytes_by_audience(plan);
  const std::span<const Audience> audiences = plan.audiences;
  Cost cost{.readers = readers};
  Traffic traffic(cluster);
  std::vector<int> reading;
  std::uint64_t num_batches = 0;
  for (std::size_t i = 0, next = 0; i < audiences.size(); i = next) {
    const Audience& first = audiences[i];
    while (next < audiences.size() && audiences[next].from == first.from && audiences[next].unit == first.unit) ++next;
    if (reading.empty() || reading.back() != first.from) reading.push_back(first.from);
    ++num_batches;
    traffic.write(first.from, batch_bytes);
    for (std::size_t each = i; each < next; ++each) {
      if (next - i > 1) traffic.write(first.from, message_bytes[each]);
      traffic.send(first.from, audiences[each].to, message_bytes[each]);
    }
  }
  if (reading.size() > 1) traffic.agree(reading);

  cost.num_readers = static_cast<int>(reading.size());
  cost.read_bytes = num_batches * batch_bytes;
  cost.crossing_bytes = traffic.crossing_bytes();
  cost.link = traffic.link();
  cost.memory = traffic.memory();
  cost.messages = traffic.messages();
  cost.storage.amount = num_batches * cluster.stored_bytes;
  if (cluster.storage_bytes_per_s) {
    cost.storage.seconds = static_cast<double>(cost.storage.amount) / *cluster.storage_bytes_per_s;
  }
  return cost;
}

std::vector<Cost> compare_readers(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                                  Divide divide, const Cluster& cluster, const std::vector<Readers>& others) {
  check(cluster, mesh);
  FanOutOptions options{.divide = divide};
  for (int rank = 0; rank < mesh.size(); ++rank) options.host_of.push_back(rank / cluster.ranks_per_host);
  auto choices = usual_choices(mesh);
  choices.insert(choices.end(), others.begin(), others.end());

  std::vector<std::vector<int>> seen;
  std::vector<Cost> costs;
  for (const Readers& readers : choices) {
    auto reader_of = readers.of(mesh, options.host_of);
    if (const auto same = std::find(seen.begin(), seen.end(), reader_of); same != seen.end()) {
      Cost& cost = costs[static_cast<std::size_t>(same - seen.begin())];
      const auto is_named = [&](const Readers& each) { return each.to_string() == readers.to_string(); };
      if (!is_named(cost.readers) && std::ranges::none_of(cost.same, is_named)) cost.same.push_back(readers);
      continue;
    }
    seen.push_back(std::move(reader_of));
    options.readers = readers;
    costs.push_back(cost_of(plan_fan_out(fields, layout, mesh, options), readers, cluster));
  }
  return costs;
}

const Cost& recommended(std::span<const Cost> costs, double step_s) {
  const auto order = [&](const Cost& cost) {
    const bool keeps_up = cost.seconds() <= max_share_of_step * step_s;
    return std::tuple(!keeps_up, keeps_up ? 0 : cost.seconds(), cost.read_bytes, cost.num_readers);
  };
  return *std::min_element(costs.begin(), costs.end(),
                           [&](const Cost& a, const Cost& b) { return order(a) < order(b); });
}

}  // namespace levada
