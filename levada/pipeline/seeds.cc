#include "levada/pipeline/seeds.h"

#include <fmt/format.h>

#include <span>

#include "levada/base/error.h"
#include "levada/base/hash.h"

namespace levada::pipeline {
namespace {

std::uint64_t derived(std::uint64_t seed, std::int64_t number) {
  return hash64(std::as_bytes(std::span(&number, 1)), seed);
}

std::uint64_t own_seed(std::uint64_t shared, const Copy& copy) {
  if (copy.role == Role::dispatcher) return shared;
  const auto of_rank = derived(shared, copy.rank + 1);
  return derived(of_rank, copy.role == Role::worker ? copy.worker + 1 : 0);
}

}  // namespace

Opening make_opening(std::uint64_t seed, std::int64_t epoch, const Copy& copy) {
  const auto shared = derived(seed, epoch);
  const Division among_ranks{copy.rank, copy.ranks};
  const Division among_all{copy.rank + std::int64_t{copy.ranks} * copy.worker, std::int64_t{copy.ranks} * copy.workers};
  return {.epoch = epoch,
          .shared_seed = shared,
          .own_seed = own_seed(shared, copy),
          .among_ranks = among_ranks,
          .among_all = copy.role == Role::worker ? among_all : among_ranks};
}

Opening further_pass(const Opening& opening, std::int64_t pass, std::optional<std::int64_t> times) {
  auto further = opening;
  if (__builtin_mul_overflow(opening.epoch, times.value_or(1), &further.epoch) ||
      __builtin_add_overflow(further.epoch, pass, &further.epoch)) {
    throw InvalidArgument(fmt::format("pass {} of epoch {} has no number: repeat it fewer times", pass, opening.epoch));
  }
  if (pass == 0) return further;
  further.shared_seed = derived(opening.shared_seed, pass);
  further.own_seed = derived(opening.own_seed, pass);
  return further;
}

std::uint64_t stage_seed(std::uint64_t seed, std::string_view stage) {
  return hash64(as_bytes(stage), seed);
}

}  // namespace levada::pipeline
