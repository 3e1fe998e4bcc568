#include "bench/fan_out.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

#include "bench/percentile.h"
#include "bench/rounds.h"
#include "levada/base/copy.h"
#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/plan/plan.h"
#include "levada/transfer/outbox.h"

namespace levada::bench {
namespace {

/// Batches in ordinary memory, used in turn, so that none stays in the caches longer than in a training job.
constexpr int host_batches = 3;

/// Returns whether receivers read their batch in this round. They do so only in every second round: on a machine with
/// fewer cores than ranks, the first readers would delay the last rank's access.
bool is_read_in(int round) {
  return round % 2 == 1;
}

/// The end of each of a round's stages on one rank, on the monotonic clock, which all processes of a host share.
struct Moments {
  std::int64_t start = 0;  ///< only on the reader
  std::int64_t access = 0, read = 0, write = 0, cycle = 0;
  std::int64_t memcpy = 0;  ///< duration; only on the reader
};

class Bench {
 public:
  Bench(const std::shared_ptr<Engine>& engine, const FanOut& operation, const FanOutOptions& options)
      : engine_(engine),
        options_(options),
        mesh_({{std::string(operation.axis), engine->info().size}}),
        layout_(layouts::data_parallel()),
        audiences_(fan_out_audiences(layout_, mesh_, {})) {
    const int rank = engine_->info().rank;
    for (const Audience& audience : audiences_) {
      const bool receiver = std::binary_search(audience.to.begin(), audience.to.end(), rank);
      if (!receiver && rank != 0) continue;
      auto channel = engine_->open(audience.from, audience.to, 2);
      if (rank == 0) outboxes_.emplace_back(channel);
      if (receiver) inbox_.emplace(engine_, channel, options_.access, 4);
    }
    for (int from = 1; from < mesh_.size(); ++from) {
      if (rank == 0 || rank == from) ready_.push_back(engine_->open(from, {0}, 2));
    }
    if (rank == 0 && options_.source == BatchSource::host) {
      HeapMemory heap;
      for (int i = 0; i < host_batches; ++i)
        host_.push_back(make_round(i, [&](std::size_t) -> Memory& { return heap; }));
    }
  }

  std::vector<Moments> run() {
    std::vector<Moments> moments;
    for (int round = 0; round < options_.warm_up + options_.rounds; ++round) {
      if (round == options_.warm_up) copied_before_ = copied_when_all_are_here();
      moments.push_back(engine_->info().rank == 0 ? lead(round) : follow(round));
    }
    copied_ = copied_when_all_are_here() - copied_before_;
    moments.erase(moments.begin(), moments.begin() + options_.warm_up);
    return moments;
  }

  /// Returns the payload copied by this rank's process in the measured rounds.
  std::uint64_t copied() const { return copied_; }
  std::uint64_t distinct_bytes() const { return options_.bytes * audiences_.size(); }

 private:
  /// Reads the counter between two barriers, since ranks may be threads of one process.
  std::uint64_t copied_when_all_are_here() {
    meet(*engine_);
    const std::uint64_t copied = copied_bytes();
    meet(*engine_);
    return copied;
  }

  using Round = std::vector<FlatTree>;  ///< one batch for each audience

  std::int64_t words() const { return static_cast<std::int64_t>(options_.bytes) / 8 / options_.fields; }
  static std::int64_t value_of(int round, std::size_t unit) { return round * 64 + static_cast<std::int64_t>(unit); }

  template <typename MemoryOf>
  Round make_round(int round, MemoryOf&& memory_of) {
    Round batches;
    for (std::size_t unit = 0; unit < audiences_.size(); ++unit) {
      Memory& memory = memory_of(unit);
      memory.reserve(options_.bytes + static_cast<std::size_t>(options_.fields) * leaf_alignment);
      std::vector<std::pair<Key, Tree>> items;
      for (int field = 0; field < options_.fields; ++field) {
        Tensor tensor = memory.empty(dtypes::int64, {1, words()});
        std::ranges::fill(tensor.mutable_as<std::int64_t>(), value_of(round, unit));
        items.emplace_back(fmt::format("field{}", field), Tree(std::move(tensor)));
      }
      batches.push_back(flatten(Tree::dict(std::move(items))));
    }
    return batches;
  }

  const std::vector<Portion>& portions(const Round& batches) {
    if (portions_.empty()) {
      for (std::size_t unit = 0; unit < batches.size(); ++unit) {
        const auto audience = std::span(audiences_).subspan(unit, 1);
        portions_.push_back(
            make_portion(batches[unit], plan_unit(fields_of(batches[unit]), layout_, mesh_, audience, {})));
      }
    }
    return portions_;
  }

  Block new_block(std::size_t bytes) { return allocate(*engine_, bytes, Deadline::after(round_timeout), "benchmark"); }

  /// The reader's round: makes its batches, waits until all other ranks sleep, starts the clock and sends.
  Moments lead(int round) {
    Moments moments;
    std::vector<BlockMemory> memories;
    Round made;
    if (options_.source == BatchSource::arena) {
      for (std::size_t i = 0; i < audiences_.size(); ++i)
        memories.emplace_back([this](std::size_t n) { return new_block(n); });
      made = make_round(round, [&](std::size_t unit) -> Memory& { return memories[unit]; });
    }
    const Round& batches = made.empty() ? host_[static_cast<std::size_t>(round % host_batches)] : made;
    const auto& portion = portions(batches);
    if (options_.source == BatchSource::host) moments.memcpy = time_memcpy(batches);
    for (const auto& channel : ready_) levada::receive(*engine_, *channel, Deadline::after(round_timeout), "benchmark");
    std::this_thread::sleep_for(std::chrono::microseconds(200));

    moments.start = now_ns();
    // Send to the other ranks first, since they have to wake up.
    for (std::size_t i = 1; i <= batches.size(); ++i) {
      const std::size_t unit = i % batches.size();
      BlockMemory* memory = memories.empty() ? nullptr : &memories[unit];
      PackedMessage packed = outboxes_[unit].pack(batches[unit], portion[unit], {}, memory,
                                                  [this](std::size_t n) { return new_block(n); });
      publish(*engine_, outboxes_[unit].channel(), std::move(packed.block), packed.bytes,
              Deadline::after(round_timeout), "benchmark");
    }
    receive(moments, round, 0);
    made.clear();
    if (options_.source == BatchSource::arena) moments.memcpy = time_memcpy_of_arena();
    return moments;
  }

  Moments follow(int round) {
    Block word = new_block(1);
    publish(*engine_, *ready_.front(), std::move(word), 1, Deadline::after(round_timeout), "benchmark");
    Moments moments;
    const std::size_t unit = audiences_.size() == 1 ? 0 : static_cast<std::size_t>(engine_->info().rank);
    receive(moments, round, unit);
    return moments;
  }

  void receive(Moments& moments, int round, std::size_t unit) {
    {
      auto arrival = inbox_->try_receive();
      while (!arrival) {
        Channel* const channel[] = {&inbox_->channel()};
        if (engine_->wait({.receive = channel}, Deadline::after(round_timeout)) == Woken::timeout) {
          throw Timeout(explain_wait(*engine_, "benchmark", 0, round_timeout));
        }
        arrival = inbox_->try_receive();
      }
      moments.access = now_ns();
      const int source_round = options_.source == BatchSource::host ? round % host_batches : round;
      if (is_read_in(round)) check(*arrival, value_of(source_round, unit));
      moments.read = now_ns();
      write(*arrival);
      moments.write = now_ns();
    }
    moments.cycle = now_ns();
  }

  void write(Inbox::Arrival& arrival) const {
    if (options_.write_percent == 0) return;
    constexpr std::size_t page = 4096;
    const std::size_t stride = page * 100 / static_cast<std::size_t>(options_.write_percent);
    for (Leaf& field : arrival.content.leaves) {
      const auto bytes = std::get<Tensor>(field).mutable_bytes();
      for (std::size_t at = 0; at < bytes.size(); at += stride) {
        std::memset(bytes.data() + at, 1, std::min(page, bytes.size() - at));
      }
    }
  }

  /// Reads every byte, and throws EngineError if a sum is wrong.
  void check(const Inbox::Arrival& arrival, std::int64_t value) const {
    for (const Leaf& field : arrival.content.leaves) {
      const auto values = std::get<Tensor>(field).as<std::int64_t>();
      const std::int64_t sum = std::accumulate(values.begin(), values.end(), std::int64_t{0});
      if (sum == value * words()) continue;
      throw EngineError(fmt::format("rank {} read other bytes than were sent", engine_->info().rank));
    }
  }

  /// Measures the limit: one copy of the distinct bytes, from the batches into blocks like those of the messages.
  std::int64_t time_memcpy(const Round& batches) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < batches.size(); ++i)
      blocks.push_back(new_block(options_.bytes + (std::size_t{64} << 10)));
    const auto start = now_ns();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      std::byte* to = blocks[i].memory().data();
      for (const Leaf& leaf : batches[i].leaves) {
        const auto from = std::get<Tensor>(leaf).bytes();
        std::memcpy(to, from.data(), from.size());
        to += from.size();
      }
    }
    return now_ns() - start;
  }

  std::int64_t time_memcpy_of_arena() {
    if (host_.empty()) {
      HeapMemory heap;
      host_.push_back(make_round(0, [&](std::size_t) -> Memory& { return heap; }));
    }
    return time_memcpy(host_.front());
  }

  std::shared_ptr<Engine> engine_;
  FanOutOptions options_;
  Mesh mesh_;
  Layout layout_;
  std::vector<Audience> audiences_;
  std::vector<Outbox> outboxes_;
  std::optional<Inbox> inbox_;
  std::vector<std::shared_ptr<Channel>> ready_;
  std::vector<Round> host_;
  std::vector<Portion> portions_;
  std::uint64_t copied_before_ = 0;
  std::uint64_t copied_ = 0;
};

struct RankReport {
  std::vector<Moments> moments;
  std::int64_t process = ::getpid();
  std::uint64_t copied = 0;  ///< payload copied by the whole process

  Bytes encode() const {
    ByteWriter writer;
    writer.put(process);
    writer.put(copied);
    for (const Moments& m : moments) {
      for (const auto value : {m.start, m.access, m.read, m.write, m.cycle, m.memcpy}) writer.put(value);
    }
    return std::move(writer).take();
  }
  static RankReport decode(ByteView bytes) {
    ByteReader reader(bytes);
    RankReport report;
    report.process = reader.get<std::int64_t>();
    report.copied = reader.get<std::uint64_t>();
    while (reader.remaining() > 0) {
      auto& m = report.moments.emplace_back();
      for (auto* value : {&m.start, &m.access, &m.read, &m.write, &m.cycle, &m.memcpy})
        *value = reader.get<std::int64_t>();
    }
    return report;
  }
};

constexpr EnumName<BatchSource> source_names[] = {{"arena", BatchSource::arena}, {"host", BatchSource::host}};

}  // namespace

BatchSource parse_source(std::string_view word) {
  return parse_enum("--source", word, source_names);
}

void check(const FanOutOptions& options) {
  if (options.rounds < 2) throw InvalidArgument(fmt::format("rounds is {}; give at least 2", options.rounds));
  const bool whole = options.fields >= 1 && options.bytes > 0 && options.bytes % (8ull * options.fields) == 0;
  if (!whole) {
    throw InvalidArgument(
        fmt::format("{} bytes cannot be divided into {} fields of 8-byte words", options.bytes, options.fields));
  }
  if (options.write_percent < 0 || options.write_percent > 100) {
    throw InvalidArgument(fmt::format("--writes must be 0 to 100 percent, got {}", options.write_percent));
  }
  if (options.write_percent > 0 && options.access == Access::read_only) {
    throw InvalidArgument("--writes needs tensors that may be written; give --access private or copy");
  }
}

FanOutResult measure(const std::shared_ptr<Engine>& engine, const FanOut& operation, const FanOutOptions& options) {
  check(options);
  Bench bench(engine, operation, options);
  RankReport mine;
  mine.moments = bench.run();
  mine.copied = bench.copied();
  std::vector<RankReport> ranks;
  for (const auto& bytes : meet(*engine, mine.encode())) {
    ranks.push_back(RankReport::decode(bytes));
  }

  std::vector<double> access, read, write, cycle, copy;
  std::map<std::int64_t, std::uint64_t> copied_by;  // ranks may be threads of one process
  for (const RankReport& rank : ranks) copied_by[rank.process] = std::max(copied_by[rank.process], rank.copied);
  std::uint64_t copied = 0;
  for (const auto& [process, bytes] : copied_by) copied += bytes;
  for (std::size_t round = 0; round < ranks[0].moments.size(); ++round) {
    const std::int64_t start = ranks[0].moments[round].start;
    const auto last = [&](std::int64_t Moments::*moment) {
      std::int64_t latest = start;
      for (const RankReport& rank : ranks) latest = std::max(latest, rank.moments[round].*moment);
      return static_cast<double>(latest - start) * 1e-3;
    };
    if (is_read_in(static_cast<int>(round) + options.warm_up)) {
      read.push_back(last(&Moments::read));
      cycle.push_back(last(&Moments::cycle));
    } else {
      access.push_back(last(&Moments::access));
      write.push_back(last(&Moments::write));
    }
    copy.push_back(static_cast<double>(ranks[0].moments[round].memcpy) * 1e-3);
  }
  const auto distinct = static_cast<double>(bench.distinct_bytes());
  FanOutResult result;
  result.median_us = percentile(access, 0.5);
  result.p99_us = percentile(access, 0.99);
  result.write_us = percentile(write, 0.5);
  result.read_us = percentile(read, 0.5);
  result.cycle_us = percentile(cycle, 0.5);
  result.delivered_gb_s = static_cast<double>(options.bytes) * engine->info().size / result.median_us * 1e-3;
  result.memcpy_gb_s = distinct / percentile(copy, 0.5) * 1e-3;
  result.copies_per_byte = static_cast<double>(copied) / distinct / options.rounds;
  return result;
}

}  // namespace levada::bench
