#include "levada/engine/p2p/stream.h"

#include <algorithm>

namespace levada::p2p {

void Stream::open(Terms its_terms, int rank) {
  opened = true;
  terms = std::move(its_terms);
  sends = sending = terms.from == rank;
  takes = taking = std::find(terms.to.begin(), terms.to.end(), rank) != terms.to.end();
  if (!sends) return;
  for (const int taker : terms.to) {
    const bool closed = std::find(closed_early.begin(), closed_early.end(), taker) != closed_early.end();
    takers.push_back({.rank = taker, .closed = closed});
  }
  closed_early.clear();
}

Stream::Taker* Stream::taker(int rank) {
  const auto found = std::find(takers.begin(), takers.end(), rank);
  return found == takers.end() ? nullptr : &*found;
}

}  // namespace levada::p2p
