#include "levada/feed/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "levada/base/host.h"
#include "levada/base/json.h"
#include "levada/engine/collect.h"
#include "levada/engine/collective_order.h"
#include "levada/feed/context_parts.h"

namespace levada {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

/// The settings that must be the same on all ranks, as readable lines. An error of this rank takes precedence.
struct FeedConfig {
  std::string error;
  std::string name;  ///< name of the pass
  std::string host;
  Lines lines;
  Lines source;  ///< only on ranks that read

  Bytes encode() const {
    ByteWriter writer;
    writer.put_sized(std::string_view(error));
    writer.put_sized(std::string_view(name));
    writer.put_sized(std::string_view(host));
    for (const Lines& part : {lines, source}) {
      writer.put(static_cast<std::uint32_t>(part.size()));
      for (const auto& [line, value] : part) {
        writer.put_sized(std::string_view(line));
        writer.put_sized(std::string_view(value));
      }
    }
    return std::move(writer).take();
  }
  static FeedConfig decode(ByteView bytes) {
    ByteReader reader(bytes);
    FeedConfig config{.error = reader.get_string(),
                      .name = reader.get_string(),
                      .host = reader.get_string(),
                      .lines = {},
                      .source = {}};
    for (Lines* part : {&config.lines, &config.source}) {
      part->resize(reader.get_count(8));
      for (auto& [line, value] : *part) {
        line = reader.get_string();
        value = reader.get_string();
      }
    }
    reader.expect_end();
    return config;
  }
};

/// Returns "ranks disagree on WHAT shuffle: rank 1 has 'seed 2', rank 0 has 'seed 1'; pass the same on all ranks", or
/// an empty string if they agree.
std::string difference(std::string_view what, const Lines& here, int rank, const Lines& first, int first_rank) {
  const auto value_of = [](const Lines& lines, const std::string& name) {
    const auto found = std::ranges::find(lines, name, &Lines::value_type::first);
    return found == lines.end() ? std::string("none") : found->second;
  };
  for (const Lines& lines : {first, here}) {
    for (const auto& [name, unused] : lines) {
      const auto [mine, theirs] = std::pair(value_of(here, name), value_of(first, name));
      if (mine == theirs) continue;
      return fmt::format("ranks disagree on {} {}: rank {} has '{}', rank {} has '{}'; pass the same on all ranks",
                         what, name, rank, mine, first_rank, theirs);
    }
  }
  return {};
}

void check_delay(const Source* source, const FeedOptions& options) {
  const auto& delayed = options.delayed;
  if (options.balance && options.balance->max_delay < 0) {
    throw InvalidArgument(fmt::format("max_delay is {}; it must not be negative", options.balance->max_delay));
  }
  if (!delayed.empty() && !options.balance) {
    throw InvalidArgument(
        fmt::format("this state has {} delayed sample(s): resume with balance, and with max_delay to delay others",
                    delayed.size()));
  }
  if (!delayed.empty() && delayed.back().number >= options.first_sample) {
    throw InvalidArgument(
        fmt::format("sample {} is said to wait at sample {}", delayed.back().number, options.first_sample));
  }
  const bool delays = !delayed.empty() || (options.balance && options.balance->max_delay > 0);
  if (delays && source != nullptr && !source->has_random_access()) {
    throw InvalidArgument("samples that arrive in sequence cannot be delayed: max_delay requires a corpus");
  }
}

/// Checks that every rank gets a sample of the last step. With max_cp, max_cp ranks may share one.
void check_last_step(const Source* source, const Mesh& mesh, const FeedOptions& options) {
  const auto size = source != nullptr ? source->size() : std::nullopt;
  if (!size || !options.balance || options.tail == Tail::drop) return;
  const std::int64_t ranks = mesh.data_size();
  const int max_cp = options.balance->max_cp;
  const auto fewest = max_cp > 1 ? with_cp_as_data(mesh).data_size() / max_cp : ranks;
  const auto samples = std::max<std::int64_t>(*size - options.first_sample, 0) + std::ssize(options.delayed);
  const auto steps = samples / (options.batch * ranks), left = samples % (options.batch * ranks);
  if (left == 0 || left >= fewest || (options.steps && *options.steps <= steps)) return;
  const auto who =
      max_cp > 1 ? fmt::format("{} blocks of {} ranks", fewest, max_cp) : fmt::format("{} data-parallel ranks", ranks);
  throw InvalidArgument(
      fmt::format("the last step would have only {} of the {} samples, but each of the {} needs one: drop that step "
                  "(tail=\"drop\", --tail drop), or choose another batch",
                  left, samples, who));
}

/// Checks that the padding of documents makes them divisible. Otherwise, the feed would fail at the first document that
/// does not divide.
void check_padding(const Source* source, const Mesh& mesh, const Layout& layout, const FeedOptions& options) {
  if (source == nullptr) return;
  if (options.balance && options.balance->max_cp > 1) return check_sequences(*source, options.balance->max_cp);
  const auto multiple = source->segment_multiple();
  const auto divisor = segment_divisor(layout, mesh, "tokens");
  if (multiple == 0 || multiple % divisor == 0) return;
  throw InvalidArgument(
      fmt::format("the layout divides each packed document into {} chunks along {}, and documents are padded to "
                  "multiples of {}: choose a multiple of {} (pad_to=, --pad-to)",
                  divisor, mesh.to_string(), multiple, divisor));
}

void check(const Engine& engine, const Mesh& mesh, const Layout& layout, const FeedOptions& options) {
  if (mesh.size() != engine.info().size) {
    throw InvalidArgument(fmt::format("mesh '{}' has {} ranks, the job has {}; make the axes multiply to {}",
                                      mesh.to_string(), mesh.size(), engine.info().size, engine.info().size));
  }
  layout.check(mesh);
  if (options.batch < 1) throw InvalidArgument(fmt::format("batch is {}; it must be at least 1", options.batch));
  if (options.first_sample < 0) throw InvalidArgument(fmt::format("first sample is {}", options.first_sample));
  if (options.balance && options.divide != Divide::deal) {
    throw InvalidArgument("balanced steps are dealt in whole samples: they cannot be split along dim 0");
  }
  if (options.balance && options.tail == Tail::pad) {
    throw InvalidArgument("balanced steps are not padded: tail must be drop or short");
  }
  if (options.steps && *options.steps < 0) throw InvalidArgument(fmt::format("steps is {}", *options.steps));
  constexpr int depth_limit = 1 << 30;  // leaves room for the few messages that are not batches
  if (options.depth > depth_limit) {
    throw InvalidArgument(fmt::format("depth is {}; it must be at most {}", options.depth, depth_limit));
  }
  const int stages = mesh.axis_size("pp");
  if (depth_of(mesh, options) < stages) {
    throw InvalidArgument(
        fmt::format("depth is {}, but pp has {} stages: the first stage takes that many batches before the last takes "
                    "one; choose {} or more",
                    options.depth, stages, stages));
  }
}

FeedConfig config_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options, const Source* source,
                     const std::string& error) {
  return {error,
          options.name,
          host_name(),
          {{"mesh", mesh.to_string()},
           {"data axes", fmt::format("{}", fmt::join(mesh.data_axes(), ","))},
           {"layout", json_text(parse_json(layout.to_json(), 100, "layout"))},
           {"batch", std::to_string(options.batch)},
           {"way to divide batches", std::string(to_string(options.divide))},
           {"tail", std::string(to_string(options.tail))},
           {"balance", options.balance ? to_string(*options.balance) : "none"},
           {"first sample, of its state or epoch", std::to_string(options.first_sample)},
           {"number of steps", options.steps ? std::to_string(*options.steps) : "all"},
           {"readers", options.readers.to_string()},
           {"depth (prefetch=)", std::to_string(depth_of(mesh, options))},
           {"timeout", format_duration(options.timeout)}},
          source == nullptr ? Lines{} : source->identity()};
}

/// Returns all ranks' configurations. Throws, the same on every rank, the first rank's error or the first difference
/// from rank 0. Sources are compared with the first reader's.
std::vector<FeedConfig> agree_on(Engine& engine, const FeedConfig& mine, Deadline deadline,
                                 const std::function<void()>& poll) {
  std::vector<FeedConfig> all;
  for (const Bytes& bytes : agree(engine, mine.encode(), deadline, feed_start_operation, &poll)) {
    all.push_back(FeedConfig::decode(bytes));
  }
  int reader = -1;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const FeedConfig& config = all[static_cast<std::size_t>(rank)];
    if (!config.error.empty()) throw InvalidArgument(config.error);
    if (config.name != all.front().name) {
      throw InvalidArgument(fmt::format(
          "rank {} starts {}, but rank 0 starts {}; create and iterate feeds in the same order on all ranks", rank,
          config.name, all.front().name));
    }
    auto error = difference("the feed's", config.lines, rank, all.front().lines, 0);
    if (error.empty() && !config.source.empty()) {
      if (reader < 0) reader = rank;
      error =
          difference("what they read, its", config.source, rank, all[static_cast<std::size_t>(reader)].source, reader);
    }
    if (!error.empty()) throw InvalidArgument(error);
  }
  return all;
}

/// Returns a group for one pass, so that messages left unread by a failed start or an earlier pass never reach it.
std::shared_ptr<Engine> group_of_pass(Engine& engine) {
  std::vector<int> all(static_cast<std::size_t>(engine.info().size));
  std::iota(all.begin(), all.end(), 0);
  return engine.subgroup(all, "feed");
}

/// During the start, also posts in the job's group which rank this one waits for in the pass's group, for ranks that
/// wait in another call on the job.
class PostedStart {
 public:
  PostedStart(Engine& job, Engine& group, const std::function<void()>& poll)
      : group_(group), status_(job, feed_start_operation), order_(job, &poll) {}

  std::function<void()> as_poll() {
    return [this, check = order_.as_poll()] {
      const int rank = group_.status(group_.info().rank).waiting_for;
      if (order_.is_due() && rank >= 0 && rank != posted_for_) status_.post(posted_for_ = rank);
      check();
    };
  }

 private:
  Engine& group_;
  OperationStatus status_;
  CollectiveOrder order_;
  int posted_for_ = -1;
};

/// Calls agree_on(). A rank that times out ends the pass for all ranks, since others may have started it already.
/// `job`: the engine whose ranks are those of `group`.
std::vector<FeedConfig> start_together(Engine& job, Engine& group, const FeedConfig& config, Deadline deadline,
                                       const std::function<void()>& poll) {
  PostedStart posted(job, group, poll);
  try {
    return agree_on(group, config, deadline, posted.as_poll());
  } catch (const PeerLost&) {
    // A rank that failed before it joined this group has posted its exception in the job.
    for (int rank = 0; rank < job.info().size; ++rank) {
      if (raised_by(job, rank)) throw_left(job, rank, feed_start_operation);
    }
    throw;
  } catch (const Timeout& timeout) {
    group.abort(timeout.what());
    throw;
  } catch (const Error&) {
    throw;  // all ranks see it
  } catch (...) {
    group.abort("it was interrupted while it started the feed");
    throw;
  }
}

}  // namespace

int depth_of(const Mesh& mesh, const FeedOptions& options) {
  return options.depth == 0 ? mesh.axis_size("pp") + 2 : options.depth;
}

FeedWiring start_feed(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Layout& layout,
                      const std::shared_ptr<Source>& source, const FeedOptions& options) {
  std::string error;
  std::vector<Audience> audiences;
  ContextFeed context{.mesh = mesh, .layout = layout, .cuts = {}};
  bool reads = false;
  try {
    check(*engine, mesh, layout, options);
    if (auto own = context_feed_of(mesh, layout, options)) context = *std::move(own);
    audiences =
        fan_out_audiences(context.layout, context.mesh,
                          {.readers = options.readers, .divide = options.divide, .host_of = engine->info().host_of});
    const int rank = engine->info().rank;
    reads = std::any_of(audiences.begin(), audiences.end(), [&](const auto& a) { return a.from == rank; });
    check_delay(reads ? source.get() : nullptr, options);
    check_last_step(reads ? source.get() : nullptr, mesh, options);
    check_padding(reads ? source.get() : nullptr, mesh, layout, options);
    if (reads && !source) error = fmt::format("rank {} reads for the feed but was given no source", rank);
  } catch (const InvalidArgument& problem) {
    error = problem.what();
  }
  auto group = group_of_pass(*engine);
  const auto config = config_of(mesh, layout, options, reads ? source.get() : nullptr, error);
  const auto all = start_together(*engine, *group, config, Deadline::after(options.timeout), options.poll);
  FeedWiring wiring = wire_feed(std::move(group), std::move(audiences), depth_of(mesh, options));
  wiring.parent = engine;
  wiring.mesh = std::move(context.mesh);
  wiring.layout = std::move(context.layout);
  wiring.cuts = std::move(context.cuts);
  const bool has_hosts = std::set(engine->info().host_of.begin(), engine->info().host_of.end()).size() > 1;
  for (const int reader : wiring.readers) {
    if (has_hosts) wiring.reader_hosts.push_back(all[static_cast<std::size_t>(reader)].host);
  }
  return wiring;
}

}  // namespace levada
