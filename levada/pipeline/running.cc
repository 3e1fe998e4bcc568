#include "levada/pipeline/running.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/base/overloaded.h"
#include "levada/pipeline/division.h"
#include "levada/pipeline/seeds.h"
#include "levada/pipeline/streams.h"

namespace levada::pipeline {
namespace {

using Instead = std::map<int, StreamPtr>;

/// Makes the streams of one pass over a graph, from its end on.
class Opener {
 public:
  Opener(SettingPtr setting, const Opening& opening, bool prefetches, Instead instead)
      : setting_(std::move(setting)), opening_(opening), prefetches_(prefetches), instead_(std::move(instead)) {}

  /// The streams up to this stage, ready to be restored or to begin.
  StagePtr open_end(int number, int thread) {
    auto stream = open(number, thread);
    StageStream::Starts starts;
    for (auto fork = made_forks_.rbegin(); fork != made_forks_.rend(); ++fork) {
      starts.emplace_back([weak = std::weak_ptr(*fork)] {
        if (const auto forked = weak.lock()) settle(*forked);
      });
    }
    starts.insert(starts.end(), starts_.begin(), starts_.end());
    stream->start_with(std::move(starts));
    return stream;
  }

 private:
  StagePtr open(int number, int thread) {
    if (const auto given = instead_.find(number); given != instead_.end()) {
      return make_given(setting_, number, std::move(given->second));
    }
    return std::visit([&](const auto& operation) { return make(number, operation, thread); },
                      setting_->stage(number).operation);
  }

  StagePtr input(int number, int thread) { return open(setting_->stage(number).inputs.front(), thread); }

  StagePtr make(int number, const Source& source, int) { return open_origin(number, source, {}); }
  StagePtr make(int number, const Map&, int thread) { return make_map(setting_, number, input(number, thread)); }
  StagePtr make(int number, const Filter&, int thread) { return make_filter(setting_, number, input(number, thread)); }
  StagePtr make(int number, const FlatMap&, int thread) {
    return make_flat_map(setting_, number, input(number, thread));
  }
  StagePtr make(int number, const Batch&, int thread) { return make_batch(setting_, number, input(number, thread)); }
  StagePtr make(int number, const Pack&, int thread) { return make_pack(setting_, number, input(number, thread)); }
  StagePtr make(int number, const Unbatch&, int thread) {
    return make_unbatch(setting_, number, input(number, thread));
  }
  StagePtr make(int number, const Take&, int thread) { return make_take(setting_, number, input(number, thread)); }
  StagePtr make(int number, const Skip&, int thread) { return make_skip(setting_, number, input(number, thread)); }
  StagePtr make(int number, const Dispatch&, int thread) {
    return make_identity(setting_, number, input(number, thread));
  }

  StagePtr make(int number, const Shuffle& shuffle, int thread) {
    const bool shared = draws_alike(setting_->graph, number);
    auto seed = stage_seed(shared ? opening_.shared_seed : opening_.own_seed, setting_->stage(number).name);
    if (shuffle.seed) seed = stage_seed(*shuffle.seed, std::to_string(opening_.epoch));
    return make_shuffle(setting_, number, input(number, thread), seed);
  }

  StagePtr make(int number, const Shard&, int thread) {
    const auto division = division_of(setting_->graph, number, opening_);
    const int before = setting_->stage(number).inputs.front();
    if (!divides_at_source(setting_->graph, number) || instead_.contains(before)) {
      return make_shard(setting_, number, open(before, thread), division);
    }
    const auto& source = std::get<Source>(setting_->stage(before).operation);
    return make_identity(setting_, number, open_origin(before, source, division));
  }

  StagePtr open_origin(int number, const Source& source, Division division) {
    try {
      return make_foreign(setting_, number, source.origin->open(opening_, division));
    } catch (const std::exception&) {
      throw_as_failed(*setting_, number, 0);
    }
  }

  StagePtr make(int number, const Zip&, int thread) { return make_zip(setting_, number, all_inputs(number, thread)); }
  StagePtr make(int number, const Transform&, int thread) {
    return make_transform(setting_, number, all_inputs(number, thread), opening_);
  }
  std::vector<StagePtr> all_inputs(int number, int thread) {
    std::vector<StagePtr> inputs;
    for (const int before : setting_->stage(number).inputs) inputs.push_back(open(before, thread));
    return inputs;
  }

  StagePtr make(int number, const Prefetch&, int thread) {
    if (!prefetches_) return make_identity(setting_, number, input(number, thread));
    auto [stream, start] = make_prefetch(setting_, number, input(number, ++threads_));
    starts_.push_back(std::move(start));
    return std::move(stream);
  }

  // Its passes are graphs of their own, each opened when the one before it has ended.
  StagePtr make(int number, const Repeat& repeat, int thread) {
    const int before = setting_->stage(number).inputs.front();
    expect_here(number, before);
    const auto open_pass = [setting = setting_, opening = opening_, prefetches = prefetches_, times = repeat.times,
                            before, thread](std::int64_t pass) {
      return Opener(setting, further_pass(opening, pass, times), prefetches, {}).open_end(before, thread);
    };
    return make_repeat(setting_, number, open_pass);
  }

  void expect_here(int repeat, int stage) {
    if (instead_.contains(stage)) {
      throw InvalidArgument(fmt::format(
          "stage \"{}\" would begin \"{}\" over again, which another process runs; put it before what is dispatched",
          setting_->stage(repeat).name, setting_->stage(stage).name));
    }
    for (const int before : setting_->stage(stage).inputs) expect_here(repeat, before);
  }

  StagePtr make(int number, const Branch&, int thread) {
    const int fork = setting_->stage(number).inputs.front();
    auto& forked = forks_[fork];
    if (forked == nullptr) {
      forked = make_fork(setting_, fork, open(fork, ++threads_));
      made_forks_.push_back(forked);
    }
    return make_branch(setting_, number, forked, thread);
  }
  // Where it is the end, and its branches are elsewhere, its items are as they come.
  StagePtr make(int number, const Fork&, int thread) { return input(number, thread); }

  StagePtr make(int number, const FullSync&, int thread) {
    const bool alone = setting_->all_ranks == nullptr || setting_->all_ranks->info().size == 1;
    if (alone) return make_identity(setting_, number, input(number, thread));
    return make_full_sync(setting_, number, [&] { return input(number, thread); });
  }

  SettingPtr setting_;
  Opening opening_;
  bool prefetches_;
  Instead instead_;
  std::map<int, std::shared_ptr<Forked>> forks_;
  std::vector<std::shared_ptr<Forked>> made_forks_;  ///< what comes before first
  StageStream::Starts starts_;
  int threads_ = 0;  ///< numbers given to what pulls: the caller is 0, a fork's branches together are one
};

/// The end of a graph, as its caller has it.
class Whole final : public Stream {
 public:
  Whole(SettingPtr setting, StagePtr end) : setting_(std::move(setting)), end_(std::move(end)) {}
  ~Whole() override {
    setting_->threads.end();  // before its threads are waited for
    end_.reset();
  }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

  std::optional<Item> next() override { return end_->next(); }
  std::int64_t skip(std::int64_t items) override { return end_->skip(items); }
  Cursor save() const override { return end_->save(); }
  void restore(const Cursor& cursor) override { end_->restore(cursor); }

 private:
  SettingPtr setting_;
  StagePtr end_;
};

}  // namespace

StreamPtr open(const Graph& graph, int end, const Running& running, std::map<int, StreamPtr> instead) {
  if (end < 0 || end > graph.end() || running.counts.size() < graph.stages().size()) {
    throw InvalidArgument(fmt::format("stage {} of {} with {} counters cannot be opened", end, graph.stages().size(),
                                      running.counts.size()));
  }
  const SettingPtr setting(new Setting{.graph = graph,
                                       .values = running.values,
                                       .process = running.process,
                                       .counts = running.counts,
                                       .all_ranks = running.all_ranks,
                                       .timeout = running.timeout,
                                       .poll = running.poll,
                                       .paused = running.paused,
                                       .at = running.at,
                                       .log = running.log,
                                       .threads = GraphThreads(running.poll)});
  Opener opener(setting, running.opening, running.prefetches, std::move(instead));
  return std::make_unique<Whole>(setting, opener.open_end(end, 0));
}

}  // namespace levada::pipeline
