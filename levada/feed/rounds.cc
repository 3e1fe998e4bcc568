#include "levada/feed/rounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/feed/feed.h"

namespace levada {
namespace {

/// Plans of so many structures and shapes are kept a unit.
constexpr std::size_t kept_plans = 16;

/// Batches with equal keys are portion alike: schema and extents.
std::vector<std::int64_t> plan_key(const FlatTree& batch) {
  std::vector<std::int64_t> key{static_cast<std::int64_t>(batch.schema.fingerprint())};
  for (const Leaf& leaf : batch.leaves) {
    const auto* tensor = std::get_if<Tensor>(&leaf);
    if (tensor != nullptr) key.insert(key.end(), tensor->shape().begin(), tensor->shape().end());
  }
  return key;
}

Bytes make_envelope(std::int64_t step, const Bytes& cursor) {
  ByteWriter writer;
  writer.put(step);
  writer.put_sized(ByteView(cursor));
  return std::move(writer).take();
}

}  // namespace

FeedRounds::FeedRounds(const FeedWiring& wiring, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
                       const FeedOptions& options)
    : wiring_(wiring),
      mesh_(mesh),
      layout_(layout),
      fan_out_{.readers = options.readers, .host_of = wiring.engine->info().host_of},
      source_(std::move(source)),
      batch_(options.batch),
      first_(options.first_sample),
      steps_(options.steps) {
  for (const Audience& audience : audiences_of(wiring_.audiences, wiring_.rank())) {
    if (units_.empty() || units_.back().number != audience.unit) {
      units_.push_back(
          {.number = audience.unit, .audiences = audiences_of(wiring_.audiences, wiring_.rank(), audience.unit)});
    }
    units_.back().outboxes.emplace_back(wiring_.data[static_cast<std::size_t>(&audience - wiring_.audiences.data())]);
  }
}

std::vector<FeedRounds::Outgoing> FeedRounds::read(std::int64_t round, const AllocateBlock& allocate) {
  std::vector<Outgoing> outgoing;
  try {
    if (limit_reached(round)) return {};
    for (Unit& unit : units_) {
      if (read_unit(unit, round, allocate, outgoing)) continue;
      end(FeedEnd::Cause::exhausted, round);
      return {};
    }
    return outgoing;
  } catch (const PeerLost&) {
    throw;
  } catch (const EngineError&) {
    throw;
  } catch (const Error& error) {
    end(FeedEnd::Cause::failed, round);
    ended_->error = error.kind();
    ended_->message = error.what();
  } catch (const std::exception& error) {
    end(FeedEnd::Cause::failed, round);
    ended_->message = error.what();
  }
  return {};
}

bool FeedRounds::limit_reached(std::int64_t round) {
  if (steps_ && round >= *steps_) {
    end(FeedEnd::Cause::steps, round);
    return true;
  }
  const auto size = source_->size();
  if (!size || (round + 1) * wiring_.units * batch_ <= *size - first_) return false;
  end(FeedEnd::Cause::exhausted, round);
  return true;
}

bool FeedRounds::read_unit(Unit& unit, std::int64_t round, const AllocateBlock& allocate,
                           std::vector<Outgoing>& outgoing) {
  BlockMemory memory(allocate);
  const std::int64_t round_begin = first_ + round * wiring_.units * batch_;
  auto tree = source_->read(round_begin + unit.number * batch_, batch_, memory);
  if (!tree) return false;
  const FlatTree batch = flatten(*tree, unit.schema);
  unit.schema = batch.schema;
  tree.reset();

  const UnitPlan& plan = plan_of(unit, batch);
  const Bytes envelope = make_envelope(round, source_->cursor(round_begin + wiring_.units * batch_));
  BlockMemory* sendable = unit.audiences.size() == 1 ? &memory : nullptr;
  for (std::size_t i = 0; i < unit.audiences.size(); ++i) {
    Outbox& outbox = unit.outboxes[i];
    outgoing.push_back({&outbox.channel(), outbox.pack(batch, plan.portions[i], envelope, sendable, allocate)});
  }
  return true;
}

const FeedRounds::UnitPlan& FeedRounds::plan_of(Unit& unit, const FlatTree& batch) {
  auto key = plan_key(batch);
  const auto known =
      std::find_if(unit.plans.begin(), unit.plans.end(), [&](const auto& plan) { return plan.key == key; });
  if (known != unit.plans.end()) return *known;

  UnitPlan plan{.key = std::move(key), .portions = {}};
  const auto moves = plan_unit(fields_of(batch), layout_, mesh_, unit.audiences, fan_out_);
  for (int audience = 0; audience < static_cast<int>(unit.audiences.size()); ++audience) {
    const auto own = std::ranges::equal_range(moves, audience, {}, &Move::audience);
    plan.portions.push_back(make_portion(batch, std::span(own.begin(), own.end())));
  }
  if (unit.plans.size() == kept_plans) unit.plans.erase(unit.plans.begin());
  return unit.plans.emplace_back(std::move(plan));
}

void FeedRounds::end(FeedEnd::Cause cause, std::int64_t round) {
  ended_ = FeedEnd{.cause = cause, .step = round, .rank = wiring_.rank(), .message = {}};
}

}  // namespace levada
