#include "levada/engine/collective_order.h"

#include <fmt/format.h>

#include <array>

namespace levada {
namespace {

std::string_view operation_of(const Status& status) {
  return std::string_view(status.operation.data());
}

/// The calls of the Python package in which a whole group agrees. A status has only the beginning of a long name.
constexpr std::array<std::string_view, 8> agreements = {"agreeing on the seed of a pipeline",
                                                        "comparing batches",
                                                        "comparing the data sets of a DataLoader",
                                                        "gathering results",
                                                        "opening the corpus",
                                                        "making ContextGroups",
                                                        "packing a step",
                                                        "splitting micro-batches"};

/// Returns the user-visible call that an operation is part of; empty if it is not a call of a whole group.
std::string_view call_of(std::string_view operation) {
  if (operation == feed_start_operation) return operation;
  if (operation.ends_with("exchange")) return "an exchange";
  for (const auto call : agreements) {
    if (!operation.empty() && call.starts_with(operation)) return call;
  }
  return {};  // a reduction continues while its caller makes other calls
}

}  // namespace

void CollectiveOrder::check() {
  if (!is_due()) return;
  const auto& info = group_.info();
  const Status mine = group_.status(info.rank);
  const int other = mine.waiting_for;
  std::string found;
  if (other >= 0 && other < info.size && other != info.rank) {
    group_.ask_statuses();
    const Status theirs = group_.status(other);
    const auto here = call_of(operation_of(mine)), there = call_of(operation_of(theirs));
    if (theirs.waiting_for == info.rank && !here.empty() && !there.empty() && here != there) {
      found = fmt::format(
          "rank {} is in {}, rank {} in {}, and each waits for the other; all ranks must make the same "
          "calls in the same order",
          info.rank, here, other, there);
    }
  }
  if (found != seen_) since_ = Clock::now();
  seen_ = std::move(found);
  if (seen_.empty() || Clock::now() - since_ < until_certain) return;
  group_.abort(seen_, ErrorKind::invalid_argument);
}

}  // namespace levada
