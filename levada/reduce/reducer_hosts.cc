// Sums of ranks on several hosts: each host's first, then the sum of these.
#include <algorithm>
#include <span>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/reduce/reducer.h"

namespace levada {

std::vector<Result> Reducer::reduce_between_hosts(std::vector<Contribution> contributions, const CollectiveSpec& spec) {
  ++exchange_;
  Block block = allocate(Contribution::block_bytes(0, spec.pieces.size()));
  Contribution::number(block, exchange_);
  std::deque<Outgoing> to_send;
  to_send.push_back({to_all_[static_cast<std::size_t>(rank())].get(),
                     Contribution::announcement(std::move(block), spec, host_.front())});
  std::vector<Given> announced(to_all_.size());
  transfer(spec.collective, to_send, awaited_from(host_, announced), true);

  // What follows within a host happens on all its ranks or on none, whatever other hosts announce.
  std::vector<Result> own;
  if (std::ranges::all_of(host_, [&](int r) { return announced[static_cast<std::size_t>(r)].spec() == spec; })) {
    const auto place = static_cast<std::size_t>(std::ranges::find(host_, rank()) - host_.begin());
    to_send = on(*to_host_[place], std::move(contributions));
    std::vector<Given> inputs(host_.size());
    std::vector<Awaited> awaited;
    for (std::size_t i = 0; i < inputs.size(); ++i) awaited.push_back({to_host_[i], &of_all_, &inputs[i]});
    transfer(spec.collective, to_send, std::move(awaited), true);
    for (const Given& each : inputs) check_given(each, spec);
    to_send = sums_for_others(inputs, spec);
    const DType dtype = host_dtype(spec.dtype, host_.size());
    for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
      own.push_back(result(*tensor_bytes(dtype, spec.pieces[i])));
      add_up_host(inputs, i, rank(), dtype, own.back().data);
    }
  }
  transfer(spec.collective, to_send, awaited_from(to_all_.front()->to(), announced), false);
  check(announced);

  // All ranks of all hosts agree: one rank of each other host sends this one its host's sums.
  std::vector<Given> received(to_all_.size());
  std::vector<Awaited> awaited;
  std::vector<HostSums> of_hosts;
  for (const auto& [first_rank, ranks] : hosts_of(announced)) {
    HostSums& host = of_hosts.emplace_back(HostSums{host_dtype(spec.dtype, ranks.size()), nullptr});
    if (first_rank == host_.front()) continue;
    const auto from = static_cast<std::size_t>(ranks[static_cast<std::size_t>(rank()) % ranks.size()]);
    host.received = &received[from];
    awaited.push_back({receiving_[from], &of_own_, &received[from]});
  }
  transfer(spec.collective, to_send, std::move(awaited), true);
  for (const HostSums& host : of_hosts) {
    CollectiveSpec sums = spec;
    sums.dtype = host.dtype;
    if (host.received != nullptr) check_given(*host.received, sums);
  }
  return add_up_hosts(spec, of_hosts, std::move(own));
}

std::map<int, std::vector<int>> Reducer::hosts_of(const std::vector<Given>& announced) const {
  std::map<int, std::vector<int>> hosts;
  for (int r = 0; r < size(); ++r) {
    hosts[announced[static_cast<std::size_t>(r)].messages.front().first_rank()].push_back(r);
  }
  if (hosts[host_.front()] != host_) throw CorruptMessage(0, "ranks differ in who shares memory with whom");
  return hosts;
}

void Reducer::check_given(const Given& given, const CollectiveSpec& spec) {
  check_has_inputs(given);
  if (given.spec() != spec) throw CorruptMessage(0, "the inputs of a collective are not those that were announced");
}

std::deque<Reducer::Outgoing> Reducer::sums_for_others(const std::vector<Given>& inputs, const CollectiveSpec& spec) {
  const CollectiveSpec empty{
      .collective = spec.collective, .op = spec.op, .dtype = host_dtype(spec.dtype, host_.size())};
  std::size_t bytes = 0;
  for (const Shape& piece : spec.pieces) bytes += *tensor_bytes(empty.dtype, piece);
  std::deque<Outgoing> messages;
  // Beginning behind oneself, so that not all send to the same rank at once.
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const auto at = static_cast<std::size_t>(to);
    if (!sending_[at] || host_[at % host_.size()] != rank()) continue;
    Contribution sums(allocate(Contribution::block_bytes(bytes, spec.pieces.size())), 1, empty);
    for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
      const std::size_t input = sums.add(spec.pieces[i], i);
      add_up_host(inputs, i, to, empty.dtype, sums.data(input));
    }
    messages.push_back({sending_[at].get(), std::move(sums).finish(true)});
    Contribution::number(messages.back().message.block, exchange_);
  }
  return messages;
}

void Reducer::add_up_host(const std::vector<Given>& inputs, std::size_t input, int number, DType dtype,
                          std::byte* to) const {
  const std::size_t bytes = inputs.front().piece_bytes(input);
  std::vector<const std::byte*> pieces;
  for (const Given& each : inputs) pieces.push_back(each.piece(input, number));
  if (pieces.size() == 1) return copy_payload(to, pieces.front(), bytes);
  const DType from = inputs.front().messages.front().spec().dtype;
  add_arrays(from, pieces, bytes / from.bytes(1), dtype, to);
}

std::vector<Result> Reducer::add_up_hosts(const CollectiveSpec& spec, const std::vector<HostSums>& of_hosts,
                                          std::vector<Result> own) {
  const DType wide = sum_dtype(spec.dtype);
  const DType dtype = std::ranges::count(of_hosts, wide, &HostSums::dtype) > 0 ? wide : spec.dtype;
  const std::size_t divisor = spec.op == ReduceOp::average ? static_cast<std::size_t>(size()) : 1;
  std::vector<Result> sums;
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    const std::size_t bytes = spec.piece_bytes(i), count = bytes / spec.dtype.bytes(1);
    std::vector<const std::byte*> parts;
    std::deque<Bytes> widened;  // of hosts with one rank, where others have several
    for (const HostSums& host : of_hosts) {
      const std::byte* part = host.received != nullptr ? host.received->piece(i, 0) : own[i].data;
      if (host.dtype != dtype) {
        Bytes& wider = widened.emplace_back(dtype.bytes(count));
        add_arrays(host.dtype, std::span(&part, 1), count, dtype, wider.data());
        part = wider.data();
      }
      parts.push_back(part);
    }
    const bool in_place = host_dtype(spec.dtype, host_.size()) == spec.dtype;
    sums.push_back(in_place ? std::move(own[i]) : result(bytes));
    add_arrays(dtype, parts, count, spec.dtype, sums.back().data, divisor);
  }
  return sums;
}

}  // namespace levada
