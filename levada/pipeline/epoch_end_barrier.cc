#include "levada/pipeline/epoch_end_barrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

/// A report includes the earlier ones, so nothing is lost if there is no room to send one.
constexpr int window = 4;

/// Throws CorruptMessage for a report that contradicts an earlier one of `rank`.
void replace(Lookahead& before, Lookahead reported, int rank) {
  if (reported.until < before.until || before.kind != Lookahead::Kind::there) {
    throw CorruptMessage(0, fmt::format("rank {} contradicts its report on item {} of its epoch", rank, before.until));
  }
  before = std::move(reported);
}

}  // namespace

// ---- EndTree

const Lookahead& earlier(const Lookahead& a, const Lookahead& b) {
  const auto rank_of = [](const Lookahead& each) {
    const int order = each.kind == Lookahead::Kind::there ? 0 : each.kind == Lookahead::Kind::failed ? 1 : 2;
    return std::tuple(each.until, order, each.failed_rank);
  };
  return rank_of(b) < rank_of(a) ? b : a;
}

EndTree::EndTree(int rank, int ranks, int group) : rank_(rank) {
  for (int unit = 1; unit < ranks && rank % unit == 0; unit *= group, ++levels_) {
    const int first = rank / (unit * group) * (unit * group);
    std::vector<int> members;
    for (int i = 0; i < group && first + i * unit < ranks; ++i) members.push_back(first + i * unit);
    is_top_ = unit * group >= ranks;
    const auto add = [&](int from, bool is_result) {
      auto to = members;
      std::erase(to, from);
      if (!to.empty()) links_.push_back({.level = levels_, .is_result = is_result, .from = from, .to = std::move(to)});
    };
    for (const int member : members) add(member, false);
    if (!is_top_) add(first, true);
  }
}

void EndTree::report(Lookahead mine) {
  mine.failed_rank = mine.kind == Lookahead::Kind::failed ? rank_ : 0;
  replace(mine_, std::move(mine), rank_);
  pass_on();
}

void EndTree::receive(std::size_t link, Lookahead reported) {
  replace(links_[link].current, std::move(reported), links_[link].from);
  pass_on();
}

void EndTree::pass_on() {
  const Lookahead* known = &mine_;  // for this rank and all below it
  auto link = links_.begin();
  for (int level = 0; level < levels_; ++level) {
    const Lookahead* of_group = known;
    const Lookahead* result = nullptr;
    for (; link != links_.end() && link->level == level; ++link) {
      if (link->is_result) result = sends(*link) ? nullptr : &link->current;
      else if (sends(*link)) link->current = *known;
      else of_group = &earlier(*of_group, link->current);
    }
    known = of_group;
    if (result != nullptr) of_all_ = *result;
  }
  if (is_top_) of_all_ = *known;
  for (auto& each : links_) {
    if (each.is_result && sends(each)) each.current = of_all_;
  }
}

std::optional<EndTree::Outcome> EndTree::outcome(std::int64_t item) const {
  if (item < of_all_.until) return Outcome{};
  if (of_all_.kind == Lookahead::Kind::there) return std::nullopt;
  if (of_all_.kind == Lookahead::Kind::ended) return Outcome{.kind = of_all_.kind};
  return Outcome{of_all_.kind, of_all_.failed_rank, of_all_.failure ? &*of_all_.failure : nullptr};
}

bool EndTree::has_sent(std::int64_t item) const {
  return std::ranges::all_of(links_, [&](const Link& link) { return !sends(link) || link.sent.knows(item); });
}

// ---- EpochEndBarrier

namespace {

/// A separate group, so that other work of this rank, on any thread, opens no channels in it.
std::shared_ptr<Engine> group_of_all(Engine& engine, const EpochEndBarrierOptions& options) {
  std::vector<int> ranks(static_cast<std::size_t>(engine.info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return engine.subgroup(ranks, "end of epoch " + options.pipeline);
}

}  // namespace

EpochEndBarrier::EpochEndBarrier(std::shared_ptr<Engine> all_ranks, EpochEndBarrierOptions options)
    : job_(std::move(all_ranks)),
      engine_(group_of_all(*job_, options)),
      options_(std::move(options)),
      tree_(engine_->info().rank, engine_->info().size),
      ended_(tree_.links().size()) {
  for (const auto& link : tree_.links()) {
    channels_.push_back(engine_->open(link.from, link.to, window, {.tag = link.is_result ? 1u : 0u}));
  }
  OperationStatus(*job_, options_.stage).post();  // so that a rank that never waits is not silent
}

void EpochEndBarrier::report(const Lookahead& mine) {
  tree_.report(mine);
  send();
}

/// Returns whether everything has been sent.
bool EpochEndBarrier::send() {
  bool all = true;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    const auto& link = tree_.links()[i];
    if (!tree_.sends(link) || link.sent == link.current) continue;
    const Bytes message = encode(link.current);
    Block block = allocate(*engine_, message.size(), Deadline::after(options_.timeout), options_.stage);
    std::ranges::copy(message, block.memory().begin());  // not payload: reports of ranks
    if (engine_->try_publish(*channels_[i], block, message.size())) tree_.sent(i);
    else all = false;
  }
  return all;
}

EndTree::Outcome EpochEndBarrier::await(std::int64_t item) {
  const auto deadline = Deadline::after(options_.timeout);
  Reminder reminder(options_.remind_after);
  for (;;) {
    send();
    const auto known = tree_.outcome(item);
    // Sent before it is returned: others may wait for this report while this rank's caller waits for them.
    if (known && tree_.has_sent(item)) return *known;
    if (!receive()) wait_for(rank_missing(item), item, deadline, reminder);
  }
}

/// Receives one report from each rank. Returns whether there was any.
bool EpochEndBarrier::receive() {
  bool any = false;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (tree_.sends(tree_.links()[i])) continue;
    const auto received = engine_->try_receive(*channels_[i]);
    ended_[i] = received.ended;
    if (!received.message) continue;
    tree_.receive(i, decode<Lookahead>(received.message->bytes));
    any = true;
  }
  return any;
}

/// Returns the first rank whose report on the item is missing; if none is, a rank without room for this rank's report,
/// or -1 if all have room.
int EpochEndBarrier::rank_missing(std::int64_t item) {
  int missing = -1;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    const auto& link = tree_.links()[i];
    if (tree_.sends(link) || link.current.knows(item)) continue;
    if (ended_[i]) {
      check_group(*engine_);
      await_reason(*job_, link.from, &options_.poll);
      throw_left(*job_, link.from,
                 fmt::format("item {} of {}: ranks begin and leave an epoch together", item, options_.stage));
    }
    if (missing < 0) missing = link.from;
  }
  for (std::size_t i = 0; i < channels_.size() && missing < 0; ++i) {
    const auto& link = tree_.links()[i];
    if (tree_.sends(link) && link.sent != link.current) missing = rank_without_room(*engine_, *channels_[i]);
  }
  return missing;
}

void EpochEndBarrier::wait_for(int missing, std::int64_t item, Deadline deadline, Reminder& reminder) {
  // From all ranks, including those that have reported: one without room to send waits for this rank to receive.
  std::vector<Channel*> receive, room;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    const auto& link = tree_.links()[i];
    if (!tree_.sends(link) && !ended_[i]) receive.push_back(channels_[i].get());
    if (tree_.sends(link) && link.sent != link.current) room.push_back(channels_[i].get());
  }
  OperationStatus status(*job_, options_.stage);
  status.post(missing, {}, item);
  const auto explain = [&] {
    const auto waited = options_.timeout - std::min(options_.timeout, deadline.remaining());
    return explain_wait(*job_, options_.stage, missing, waited);
  };
  const auto poll = asking_statuses(*job_, &options_.poll);
  const WaitFor conditions{.receive = receive, .publish = room, .poll = &poll};
  if (reminder.wait(*engine_, conditions, deadline, explain) != Woken::timeout) return;
  const auto why = explain();
  status.keep();
  engine_->abort(fmt::format("{} with Timeout: {}", options_.stage, why), ErrorKind::timeout);
  throw Timeout(why);
}

}  // namespace levada::pipeline
