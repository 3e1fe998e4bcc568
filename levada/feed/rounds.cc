#include "levada/feed/rounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/assert.h"
#include "levada/feed/envelope.h"
#include "levada/feed/feed.h"
#include "levada/feed/labels.h"
#include "levada/feed/unit_digest.h"

namespace levada {
namespace {

/// Number of structures and shapes whose plans are cached per unit.
constexpr std::size_t kept_plans = 16;

/// Returns whether Zigzag divides any field. If so, the segments of packed sequences matter, not only their number.
bool divides_sequences(const Layout& layout, const Mesh& mesh) {
  const auto divides = [&](const Placement& placement) { return divides_by_zigzag(placement, mesh); };
  return std::ranges::any_of(layout.otherwise, divides) || std::ranges::any_of(layout.rules, [&](const auto& rule) {
           return std::ranges::any_of(rule.placements, divides);
         });
}

/// Returns the key of a plan: batches with equal keys are divided alike. It consists of the schema, the extents, the
/// number of samples of a short batch and, if they matter, the segments.
std::vector<std::int64_t> plan_key(const FlatTree& batch, std::int64_t short_samples, const PackedSegments& segments) {
  std::vector<std::int64_t> key{static_cast<std::int64_t>(batch.schema.fingerprint()), short_samples};
  segments.append_to(key);
  for (const Leaf& leaf : batch.leaves) {
    const auto* tensor = std::get_if<Tensor>(&leaf);
    if (tensor != nullptr) key.insert(key.end(), tensor->shape().begin(), tensor->shape().end());
  }
  return key;
}

std::size_t tensor_bytes(const FlatTree& batch) {
  std::size_t bytes = 0;
  for (const Leaf& leaf : batch.leaves) {
    if (const auto* tensor = std::get_if<Tensor>(&leaf)) bytes += tensor->view().byte_count();
  }
  return bytes;
}

}  // namespace

FeedRounds::FeedRounds(const FeedWiring& wiring, std::shared_ptr<Source> source, const FeedOptions& options)
    : wiring_(wiring),
      fan_out_{.readers = options.readers,
               .divide = options.divide,
               .host_of = wiring.engine->info().host_of,
               .part_samples = options.batch},
      source_(std::move(source)),
      unit_samples_(options.batch * (options.divide == Divide::split ? wiring.mesh.data_size() : 1)),
      tail_(options.tail),
      divides_sequences_(levada::divides_sequences(wiring.layout, wiring.mesh)),
      may_part_labels_(may_part_labels(wiring.layout, wiring.mesh)),
      reads_all_(wiring.readers.size() == 1),
      first_(options.first_sample),
      steps_(options.steps),
      trace_(options.trace) {
  for (const Audience& audience : audiences_of(wiring_.audiences, wiring_.rank())) {
    if (units_.empty() || units_.back().number != audience.unit) {
      const auto is_shared = std::ranges::any_of(wiring_.audiences, [&](const Audience& other) {
        return other.unit == audience.unit && other.from != wiring_.rank();
      });
      units_.push_back({.number = audience.unit,
                        .is_shared = is_shared,
                        .audiences = audiences_of(wiring_.audiences, wiring_.rank(), audience.unit)});
    }
    units_.back().outboxes.emplace_back(wiring_.data[static_cast<std::size_t>(&audience - wiring_.audiences.data())]);
  }
  const bool compares_all = std::ranges::any_of(units_, &Unit::is_shared);
  samples_first_unit_ = !reads_all_ && !compares_all && !source_->is_by_number();
}

void FeedRounds::sample_first_unit(std::int64_t round, const AllocateBlock& allocate) {
  BlockMemory memory(allocate);
  const auto tree = read_unit(Unit{}, round, memory);
  if (tree && !is_over(round)) digests_.push_back(digest_of(0, flatten(*tree), *source_));
}

std::vector<FeedRounds::Outgoing> FeedRounds::read(const AllocateBlock& allocate) {
  const auto round = next_.round;
  try {
    if (!reading_) {
      digests_.clear();
      if (is_over(round)) return {};
      announce(round);
      reading_.emplace(Reading{.batches = {}, .totals = next_.micro == 0 ? StepTotals() : totals_, .outgoing = {}});
    }
    if (read_batches(round, allocate)) {
      for (std::size_t i = 0; i < units_.size(); ++i) prepare(units_[i], round, reading_->batches[i], allocate);
      return finish_round(round);
    }
  } catch (const PeerLost&) {
    throw;
  } catch (const EngineError&) {
    throw;
  } catch (const ReadAbandoned&) {
    abandoned_ = true;
  } catch (const Error& error) {
    end(FeedEnd::Cause::failed);
    ended_->error = error.kind();
    ended_->message = error.what();
  } catch (const std::exception& error) {
    end(FeedEnd::Cause::failed);
    ended_->message = error.what();
  }
  reading_.reset();
  return {};
}

bool FeedRounds::read_batches(std::int64_t round, const AllocateBlock& allocate) {
  if (is_sampled(round) && units_.front().number != 0 && !reading_->has_sampled) sample_first_unit(round, allocate);
  reading_->has_sampled = true;
  auto& batches = reading_->batches;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (i == batches.size()) {
      auto batch = std::make_shared<UnitBatch>(UnitBatch{.memory = BlockMemory(allocate)});
      auto tree = read_unit(unit, round, batch->memory);
      if (is_over(round)) return false;  // a source of unknown size has ended
      batch->content = flatten(*tree, unit.schema);
      unit.schema = batch->content.schema;
      tree.reset();
      if (reads_all_) reading_->totals += totals_of(unit, round, batch->content);
      if (unit.is_shared || (unit.number == 0 && is_sampled(round)))
        digests_.push_back(digest_of(unit.number, batch->content, *source_));
      batch->way = copy_mode_for(units_.size() * tensor_bytes(batch->content));
      batches.push_back(std::move(batch));
    }
    // Tensors lent by the source become invalid with the next read. Those of earlier batches have been copied.
    if (i + 1 == batches.size() && i + 1 < units_.size()) {
      UnitBatch& batch = *batches.back();
      batch.content = batch.memory.copy_in(std::move(batch.content), batch.way);
    }
  }
  return true;
}

std::vector<FeedRounds::Outgoing> FeedRounds::finish_round(std::int64_t round) {
  auto outgoing = std::move(reading_->outgoing);
  totals_ = reading_->totals;
  reading_.reset();
  const auto micro = source_->micro_batch(begin_of(round));
  LEVADA_ASSERT(outgoing.size() == audiences_of(wiring_.audiences, wiring_.rank()).size(),
                "a round has one message for each audience of its reader");
  next_.advance(!micro || micro->ends_step());
  division_ = micro ? micro->division : 0;
  const auto own = wiring_.data[static_cast<std::size_t>(wiring_.own_audience())].get();
  std::stable_partition(outgoing.begin(), outgoing.end(),
                        [&](const Outgoing& message) { return &message.channel() != own; });
  return outgoing;
}

void FeedRounds::announce(std::int64_t round) {
  constexpr std::int64_t min_rounds = 8, min_samples = 256;
  const auto samples = unit_samples_ * static_cast<std::int64_t>(units_.size());
  auto end = round + std::max(min_rounds, min_samples / std::max<std::int64_t>(samples, 1));
  if (steps_) end = std::min(end, *steps_);
  for (announced_ = std::max(announced_, round); announced_ < end; ++announced_) {
    for (const Unit& unit : units_) {
      source_->will_read(begin_of(announced_) + unit.number * unit_samples_, unit_samples_);
    }
  }
}

std::int64_t FeedRounds::samples_in(std::int64_t round) const {
  const auto size = source_->size();
  return size ? std::clamp<std::int64_t>(*size - begin_of(round), 0, round_samples()) : round_samples();
}

std::int64_t FeedRounds::samples_in(std::int64_t round, const Unit& unit) const {
  return std::clamp<std::int64_t>(samples_in(round) - unit.number * unit_samples_, 0, unit_samples_);
}

bool FeedRounds::is_over(std::int64_t round) {
  if (steps_ && next_.step >= *steps_) {
    end(FeedEnd::Cause::steps);
    return true;
  }
  const auto samples = samples_in(round);
  if (samples == round_samples() || (samples > 0 && tail_ != Tail::drop)) return false;
  end(FeedEnd::Cause::exhausted);
  return true;
}

std::optional<Tree> FeedRounds::read_unit(const Unit& unit, std::int64_t round, Memory& memory) {
  const TraceScope scope(trace_, TraceThread::reader, TraceKind::read, round);
  const auto offset = unit.number * unit_samples_;
  const auto wanted = std::min(unit_samples_, samples_in(round) - offset);
  std::optional<Tree> batch;
  if (wanted > 0) batch = source_->read(begin_of(round) + offset, wanted, memory);
  const auto samples = samples_in(round, unit);
  if (batch.has_value() != (samples > 0)) {
    throw SourceError(fmt::format("the source has {} samples in total, but returned {} for number {}",
                                  source_->size().value_or(0), batch ? "some" : "none", begin_of(round) + offset));
  }
  const bool is_whole = samples == unit_samples_ || samples_in(round) == 0 || tail_ == Tail::drop;
  return is_whole ? std::move(batch) : complete(unit, round, std::move(batch));
}

StepTotals FeedRounds::totals_of(Unit& unit, std::int64_t round, const FlatTree& batch) const {
  if (const auto micro = source_->micro_batch(begin_of(round) + unit.number)) {
    const bool is_first_part = unit.number % micro->cp_size == 0;
    auto totals = micro->cp_size == 1 ? unit.counter.count(batch) : is_first_part ? micro->row : StepTotals();
    totals.samples = is_first_part ? micro->samples : 0;
    return totals;
  }
  const auto samples = samples_in(round, unit);
  if (samples == 0) return {};
  std::optional<PaddedRows> padded;
  if (tail_ == Tail::pad && samples < unit_samples_) {
    padded = {source_->num_rows(batch, samples), source_->num_rows(batch, unit_samples_)};
  }
  auto totals = unit.counter.count(batch, padded);
  totals.samples = source_->num_rows(batch, samples);
  return totals;
}

std::optional<Tree> FeedRounds::complete(const Unit& unit, std::int64_t round, std::optional<Tree> batch) {
  const auto samples = samples_in(round, unit);
  const auto padding = tail_ == Tail::pad ? unit_samples_ - samples : 0;
  if (samples > 0) return padding > 0 ? with_padding(*batch, samples, samples, padding) : std::move(batch);
  HeapMemory heap;
  const auto last = source_->read(*source_->size() - 1, 1, heap);
  if (!last) throw SourceError("the source did not return its last sample a second time");
  const auto rows = source_->num_rows(flatten(*last), 1);
  return with_padding(*last, rows, 0, padding * rows);
}

void FeedRounds::prepare(Unit& unit, std::int64_t round, const std::shared_ptr<UnitBatch>& batch,
                         const AllocateBlock& allocate) {
  const FlatTree& content = batch->content;
  const auto samples = samples_in(round);
  fan_out_.short_samples = tail_ == Tail::short_ && samples < round_samples() ? samples : 0;
  const UnitPlan& plan = plan_of(unit, content);
  const auto micro = source_->micro_batch(begin_of(round) + unit.number);
  batch->envelope =
      encode(feed_protocol::Envelope{.round = round,
                                     .samples = micro ? micro->samples : samples,
                                     .num_micro = micro ? micro->num_micro : 0,
                                     .cp_size = micro ? micro->cp_size : 1,
                                     .cursor = source_->cursor(begin_of(round) + samples),
                                     .totals = reads_all_ ? std::optional(reading_->totals) : std::nullopt});
  BlockMemory* sendable = unit.audiences.size() == 1 ? &batch->memory : nullptr;
  for (auto& i = batch->num_prepared; i < unit.audiences.size(); ++i) {
    Outbox& outbox = unit.outboxes[i];
    const Portion& portion = plan.portions[i];
    auto pending = outbox.prepare(content, portion, batch->envelope.size(), sendable, allocate);
    reading_->outgoing.push_back({&outbox, &portion, batch, std::move(pending), {}});
  }
}

void FeedRounds::Outgoing::complete() {
  if (!batch) return;
  packed = outbox->complete(std::move(pending), batch->content, *portion, batch->envelope, batch->way);
  batch.reset();
}

const FeedRounds::UnitPlan& FeedRounds::plan_of(Unit& unit, const FlatTree& batch) {
  const auto segments = divides_sequences_ ? PackedSegments(batch) : PackedSegments();
  auto key = plan_key(batch, fan_out_.short_samples, segments);
  const auto known =
      std::find_if(unit.plans.begin(), unit.plans.end(), [&](const auto& plan) { return plan.key == key; });
  if (known != unit.plans.end()) return *known;

  if (may_part_labels_) expect_shifted_labels(batch, wiring_.layout, wiring_.mesh);
  UnitPlan plan{.key = std::move(key), .portions = {}};
  const auto moves = plan_unit(fields_of(batch, segments), wiring_.layout, wiring_.mesh, unit.audiences, fan_out_);
  for (int audience = 0; audience < static_cast<int>(unit.audiences.size()); ++audience) {
    const auto begin = std::ranges::lower_bound(moves, audience, {}, &Move::audience);
    const auto end = std::ranges::upper_bound(moves, audience, {}, &Move::audience);
    plan.portions.push_back(make_portion(batch, std::span(begin, end)));
  }
  if (unit.plans.size() == kept_plans) unit.plans.erase(unit.plans.begin());
  return unit.plans.emplace_back(std::move(plan));
}

void FeedRounds::end(FeedEnd::Cause cause) {
  ended_ = FeedEnd{.cause = cause, .at = next_, .rank = wiring_.rank(), .message = {}};
}

}  // namespace levada
