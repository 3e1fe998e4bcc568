// Sums of ranks on several hosts: first the sum of each host, then the sum of the hosts' sums.
#include <algorithm>
#include <deque>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/reduce/reducer.h"

namespace levada {

Results Reducer::reduce_between_hosts(const BucketLayout& layout, std::vector<BucketMessage> messages) {
  ++exchange_;
  auto to_send = announcement(layout);
  Peers announced(to_all_.size());
  transfer(to_send, missing_from(host_, layout, announced));

  // The sum of several ranks is not rounded before the hosts' sums are added up.
  CollectiveSpec unrounded = layout.spec();
  unrounded.dtype = sum_dtype(unrounded.dtype);
  const BucketLayout of_one(layout.spec(), 1), of_several(std::move(unrounded), 1);
  const auto sums_of = [&](std::size_t ranks) -> const BucketLayout& { return ranks == 1 ? of_one : of_several; };
  const BucketLayout& own_layout = sums_of(host_.size());
  const Results own = allocate_results(own_layout);

  // The next steps happen on all ranks of a host or on none, whatever other hosts have announced.
  const auto agrees = [&](int r) { return announced[static_cast<std::size_t>(r)].layout_hash == layout.hash(); };
  if (std::ranges::all_of(host_, agrees)) {
    to_send = reduce_in_host(layout, std::move(messages), own_layout, own.data.front());
  }
  transfer(to_send, missing_from(all_ranks_, layout, announced), false);
  check_agreement(layout, announced);

  // All ranks of all hosts agree. One rank of each other host sends its host's sums.
  Peers received(to_all_.size());
  PeerMessages& own_host = received[static_cast<std::size_t>(rank())];
  own_host.layout_hash = own_layout.hash();
  own_host.inputs.assign(own.data.begin(), own.data.end());
  own_host.is_complete = true;
  std::vector<Incoming> hosts;
  for (const auto& [first_rank, ranks] : hosts_of(announced)) {
    const int from = first_rank == host_.front() ? rank() : ranks[static_cast<std::size_t>(rank()) % ranks.size()];
    const auto at = static_cast<std::size_t>(from);
    hosts.push_back({receiving_[at], &sums_of(ranks.size()), &received[at]});
  }
  transfer(to_send, hosts);
  for (const Incoming& host : hosts) check_inputs(*host.layout, *host.peer);
  const bool in_place = own_layout.spec().dtype == layout.spec().dtype;
  Results sums = in_place ? own : allocate_results(of_one);
  add_up_hosts(layout, hosts, sums);
  return sums;
}

std::deque<Reducer::Outgoing> Reducer::reduce_in_host(const BucketLayout& layout, std::vector<BucketMessage> messages,
                                                      const BucketLayout& sums_layout, std::byte* own) {
  // Allocate first: a rank must not wait for memory while it holds inputs of other ranks that may wait, too.
  const std::vector<int> served = served_ranks();
  std::vector<BucketMessage> sums;
  const std::size_t bytes = MessageHeader::bytes + sums_layout.bytes();
  while (sums.size() < served.size()) {
    sums.push_back({std::make_shared<const Block>(allocate(bytes)), bytes, sums_layout.inputs()});
  }
  const auto index = static_cast<std::size_t>(std::ranges::find(host_, rank()) - host_.begin());
  auto to_send = outgoing(*to_host_[index], layout, std::move(messages));
  Peers inputs(host_.size());
  std::vector<Incoming> missing;
  for (std::size_t i = 0; i < inputs.size(); ++i) missing.push_back({to_host_[i], &layout, &inputs[i]});
  transfer(to_send, std::move(missing));
  for (const PeerMessages& each : inputs) check_inputs(layout, each);
  for (std::size_t i = 0; i < served.size(); ++i) {
    add_up(layout, inputs, served[i], sums_layout, sums[i].block->memory().data() + MessageHeader::bytes);
    Channel& channel = *sending_[static_cast<std::size_t>(served[i])];
    to_send.push_back(outgoing(channel, sums_layout, {std::move(sums[i])}).front());
  }
  add_up(layout, inputs, rank(), sums_layout, own);
  return to_send;
}

void Reducer::add_up_hosts(const BucketLayout& layout, const std::vector<Incoming>& hosts, const Results& to) const {
  const CollectiveSpec& spec = layout.spec();
  const auto is_unrounded = [&](const Incoming& host) { return host.layout->spec().dtype != spec.dtype; };
  const DType dtype = std::ranges::any_of(hosts, is_unrounded) ? sum_dtype(spec.dtype) : spec.dtype;
  for (std::size_t i = 0; i < layout.inputs(); ++i) {
    const std::size_t count = layout.piece_bytes(i) / spec.dtype.bytes(1);
    std::vector<const std::byte*> parts;
    std::deque<Bytes> widened;  // sums of hosts with one rank, if other hosts have several
    for (const Incoming& host : hosts) {
      parts.push_back(host.peer->inputs[i]);
      const DType from = host.layout->spec().dtype;
      if (from == dtype) continue;
      Bytes& wider = widened.emplace_back(dtype.bytes(count));
      add_arrays(from, std::span(&parts.back(), 1), count, dtype, wider.data());
      parts.back() = wider.data();
    }
    add_arrays(dtype, parts, count, spec.dtype, to.data[i], divisor_of(spec));
  }
}

std::map<int, std::vector<int>> Reducer::hosts_of(const Peers& announced) const {
  std::map<int, std::vector<int>> hosts;
  for (const int r : all_ranks_) hosts[announced[static_cast<std::size_t>(r)].first_rank].push_back(r);
  if (hosts[host_.front()] != host_) throw CorruptMessage(0, "ranks disagree about which ranks share memory");
  return hosts;
}

std::vector<int> Reducer::served_ranks() const {
  std::vector<int> served;
  // Starts with the next rank, so that not all ranks send to the same one at the same time.
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const auto at = static_cast<std::size_t>(to);
    if (sending_[at] && host_[at % host_.size()] == rank()) served.push_back(to);
  }
  return served;
}

}  // namespace levada
