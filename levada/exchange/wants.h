// A request, sample by sample: which ranks want it. Private to this module.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/exchange/destinations.h"
#include "levada/exchange/id_table.h"

namespace levada {

/// Keeps the error of the lowest id, so that the reported error does not depend on the order of the checks.
class FirstError {
 public:
  template <typename Message>
  void note(std::string_view id, Message&& message) {
    ++count_;
    if (count_ > 1 && id >= id_) return;
    id_ = id;
    message_ = message();
  }
  void raise() const;

 private:
  std::size_t count_ = 0;
  std::string id_;
  std::string message_;
};

/// Returns text such as "rank 3" or "ranks 0-7,16".
std::string ranks_text(const Holders& holders);

struct Wants {
  Interner<Holders> lists;               ///< ranks, and the part that each wants; list 0 is empty
  std::vector<std::uint32_t> of_sample;  ///< a list for each sample of the directory
};

/// Returns which ranks want each sample. `requested`: the samples' numbers, as plan_exchange() takes them; `ranks`: the
/// number of ranks. Throws InvalidArgument for a rank or part that does not exist, a sample that no rank holds, and a
/// rank that wants different parts of one sample. Reports the lowest of them regardless of the order.
Wants find_wants(const SampleDirectory& directory, const ExchangeRequest& request,
                 std::span<const std::uint32_t> requested, int ranks);

}  // namespace levada
