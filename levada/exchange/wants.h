// Who wants which sample: a request, sample by sample. For this module's sources alone.
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

/// The error of the lowest id, so that it is the same whatever the order.
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

/// "rank 3", "ranks 0-7,16".
std::string ranks_text(const Holders& holders);

struct Wants {
  Interner<Holders> lists;               ///< ranks, and the part that each is to have; list 0 is nobody
  std::vector<std::uint32_t> of_sample;  ///< a list for each sample of the directory
};

/// `requested`: the samples' numbers, as plan_exchange() takes them; `ranks`: how many there are. Throws
/// InvalidArgument for no such rank or part, a sample that nobody holds, and different parts of one sample that a rank
/// wants: the lowest of them, whatever the order.
Wants find_wants(const SampleDirectory& directory, const ExchangeRequest& request,
                 std::span<const std::uint32_t> requested, int ranks);

}  // namespace levada
