// Sums of ranks on several hosts: first each host's, then the sum of these.
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

  // A sum of several ranks is not rounded before the hosts' sums are added up.
  const CollectiveSpec& spec = layout.spec();
  CollectiveSpec unrounded = spec;
  unrounded.dtype = sum_dtype(spec.dtype);
  const BucketLayout of_one(spec, 1), of_several(unrounded, 1);
  const auto sums_of = [&](std::size_t ranks) { return ranks == 1 ? &of_one : &of_several; };
  const BucketLayout& host_sums = *sums_of(host_.size());
  Results own;

  // What follows within a host happens on all of its ranks or on none, whatever other hosts have announced.
  const auto agrees = [&](int r) { return announced[static_cast<std::size_t>(r)].layout_hash == layout.hash(); };
  if (std::ranges::all_of(host_, agrees)) {
    // Memory comes first: a rank must not wait for it while it holds inputs of others, who may wait for theirs.
    const std::vector<int> served = served_ranks();
    own = allocate_results(host_sums);
    std::vector<BucketMessage> sums;
    const std::size_t bytes = MessageHeader::bytes + host_sums.bytes();
    while (sums.size() < served.size()) {
      sums.push_back({std::make_shared<const Block>(allocate(bytes)), bytes, host_sums.inputs()});
    }
    const auto index = static_cast<std::size_t>(std::ranges::find(host_, rank()) - host_.begin());
    to_send = outgoing(*to_host_[index], layout, std::move(messages));
    Peers inputs(host_.size());
    std::vector<Missing> missing;
    for (std::size_t i = 0; i < inputs.size(); ++i) missing.push_back({to_host_[i], &layout, &inputs[i]});
    transfer(to_send, std::move(missing));
    for (const PeerMessages& each : inputs) check_inputs(layout, each);
    for (std::size_t i = 0; i < served.size(); ++i) {
      add_up_host(layout, inputs, served[i], host_sums, sums[i].block->memory().data() + MessageHeader::bytes);
      Channel& channel = *sending_[static_cast<std::size_t>(served[i])];
      to_send.push_back(outgoing(channel, host_sums, {std::move(sums[i])}).front());
    }
    add_up_host(layout, inputs, rank(), host_sums, own.data.front());
  }
  transfer(to_send, missing_from(all_ranks_, layout, announced), false);
  check_agreement(layout, announced);

  // All ranks of all hosts agree: one rank of each other host sends its host's sums.
  struct Host {
    const BucketLayout* layout;
    const PeerMessages* peer;  ///< null: this host's are `own`
  };
  std::vector<Host> hosts;
  Peers received(to_all_.size());
  std::vector<Missing> missing;
  for (const auto& [first_rank, ranks] : hosts_of(announced)) {
    hosts.push_back({sums_of(ranks.size()), nullptr});
    if (first_rank == host_.front()) continue;
    const auto from = static_cast<std::size_t>(ranks[static_cast<std::size_t>(rank()) % ranks.size()]);
    hosts.back().peer = &received[from];
    missing.push_back({receiving_[from], hosts.back().layout, &received[from]});
  }
  transfer(to_send, std::move(missing));
  for (const Host& host : hosts) {
    if (host.peer != nullptr) check_inputs(*host.layout, *host.peer);
  }

  const bool any_unrounded = std::ranges::count(hosts, &of_several, &Host::layout) > 0;
  const DType dtype = any_unrounded ? unrounded.dtype : spec.dtype;
  const std::size_t divisor = spec.op == ReduceOp::average ? static_cast<std::size_t>(size()) : 1;
  Results sums = host_sums.spec().dtype == spec.dtype ? own : allocate_results(of_one);
  for (std::size_t i = 0; i < layout.inputs(); ++i) {
    const std::size_t count = layout.piece_bytes(i) / spec.dtype.bytes(1);
    std::vector<const std::byte*> parts;
    std::deque<Bytes> widened;  // of hosts with one rank, where others have several
    for (const Host& host : hosts) {
      const std::byte* part = host.peer != nullptr ? host.peer->inputs[i] : own.data[i];
      if (const DType its = host.layout->spec().dtype; its != dtype) {
        Bytes& wider = widened.emplace_back(dtype.bytes(count));
        add_arrays(its, std::span(&part, 1), count, dtype, wider.data());
        part = wider.data();
      }
      parts.push_back(part);
    }
    add_arrays(dtype, parts, count, spec.dtype, sums.data[i], divisor);
  }
  return sums;
}

std::map<int, std::vector<int>> Reducer::hosts_of(const Peers& announced) const {
  std::map<int, std::vector<int>> hosts;
  for (const int r : all_ranks_) hosts[announced[static_cast<std::size_t>(r)].first_rank].push_back(r);
  if (hosts[host_.front()] != host_) throw CorruptMessage(0, "ranks differ in who shares memory with whom");
  return hosts;
}

std::vector<int> Reducer::served_ranks() const {
  std::vector<int> served;
  // Starts behind this rank, so that not all ranks send to the same one at once.
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const auto at = static_cast<std::size_t>(to);
    if (sending_[at] && host_[at % host_.size()] == rank()) served.push_back(to);
  }
  return served;
}

void Reducer::add_up_host(const BucketLayout& layout, const Peers& inputs, int number, const BucketLayout& sums,
                          std::byte* to) {
  const DType from = layout.spec().dtype;
  std::vector<const std::byte*> pieces(inputs.size());
  for (std::size_t i = 0; i < layout.inputs(); ++i) {
    const std::size_t bytes = layout.piece_bytes(i);
    for (std::size_t r = 0; r < inputs.size(); ++r) pieces[r] = inputs[r].inputs[i] + static_cast<std::size_t>(number) * bytes;
    if (pieces.size() == 1) copy_payload(to + sums.offset(i), pieces.front(), bytes);
    else add_arrays(from, pieces, bytes / from.bytes(1), sums.spec().dtype, to + sums.offset(i));
  }
}

}  // namespace levada
