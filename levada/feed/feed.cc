#include "levada/feed/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/engine/collect.h"
#include "levada/feed/reader.h"

namespace levada {
namespace {

/// What all ranks must have said alike, as lines for people; an error of this rank's own comes first.
struct Terms {
  std::string error;
  std::vector<std::pair<std::string, std::string>> lines;

  Bytes encode() const {
    ByteWriter writer;
    writer.put_sized(std::string_view(error));
    for (const auto& [name, value] : lines) {
      writer.put_sized(std::string_view(name));
      writer.put_sized(std::string_view(value));
    }
    return std::move(writer).take();
  }
  static Terms decode(ByteView bytes) {
    ByteReader reader(bytes);
    Terms terms{.error = reader.get_string(), .lines = {}};
    while (reader.remaining() > 0) {
      auto name = reader.get_string();
      terms.lines.emplace_back(std::move(name), reader.get_string());
    }
    return terms;
  }
};

int depth_of(const Mesh& mesh, const FeedOptions& options) {
  return options.depth == 0 ? mesh.axis_size("pp") + 2 : options.depth;
}

void check(const Engine& engine, const Mesh& mesh, const Layout& layout, const FeedOptions& options) {
  if (mesh.size() != engine.info().size) {
    throw InvalidArgument(fmt::format("mesh '{}' has {} ranks, the job has {}; make the axes multiply to {}",
                                      mesh.to_string(), mesh.size(), engine.info().size, engine.info().size));
  }
  layout.check(mesh);
  if (options.batch < 1) throw InvalidArgument(fmt::format("batch is {}; it must be at least 1", options.batch));
  if (options.first_sample < 0) throw InvalidArgument(fmt::format("first sample is {}", options.first_sample));
  if (options.steps && *options.steps < 0) throw InvalidArgument(fmt::format("steps is {}", *options.steps));
  const int stages = mesh.axis_size("pp");
  if (depth_of(mesh, options) < stages) {
    throw InvalidArgument(
        fmt::format("depth is {}, but pp has {} stages: the first takes so many batches before the last takes one; "
                    "choose {} or more",
                    options.depth, stages, stages));
  }
}

Terms terms_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options, const std::string& error) {
  return {error,
          {{"mesh", mesh.to_string()},
           {"layout", layout.to_json()},
           {"batch", std::to_string(options.batch)},
           {"way to divide batches", std::string(to_string(options.divide))},
           {"tail", std::string(to_string(options.tail))},
           {"first sample", std::to_string(options.first_sample)},
           {"steps", options.steps ? std::to_string(*options.steps) : "all"},
           {"readers", options.readers.to_string()},
           {"depth", std::to_string(depth_of(mesh, options))}}};
}

/// Throws, on every rank the same, the first rank's error or the first difference from rank 0.
void agree_on(Engine& engine, const Terms& mine, Deadline deadline) {
  const auto all = agree(engine, mine.encode(), deadline, "starting the feed");
  const Terms first = Terms::decode(all.front());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Terms terms = Terms::decode(all[rank]);
    if (!terms.error.empty()) throw InvalidArgument(terms.error);
    for (std::size_t i = 0; i < first.lines.size() && i < terms.lines.size(); ++i) {
      if (terms.lines[i] == first.lines[i]) continue;
      throw InvalidArgument(fmt::format("ranks disagree on the feed's {}: rank {} has '{}', rank 0 has '{}'",
                                        first.lines[i].first, rank, terms.lines[i].second, first.lines[i].second));
    }
  }
}

}  // namespace

/// The taking side, on the caller's thread.
class Feed::Impl {
 public:
  Impl(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
       const FeedOptions& options)
      : wiring_(wire(std::move(engine), mesh, layout, source, options)),
        follower_(wiring_.readers.size() > 1),
        own_(wiring_.audiences[static_cast<std::size_t>(wiring_.own_audience())]),
        inbox_(wiring_.engine, wiring_.data[static_cast<std::size_t>(wiring_.own_audience())], options.access,
               depth_of(mesh, options), options.writes),
        timeout_(options.timeout),
        poll_(options.poll),
        batch_(options.batch),
        data_coordinate_(mesh.coordinate(wiring_.rank(), "dp")),
        trace_(options.trace) {
    if (!wiring_.is_reader()) return;
    reader_.emplace(wiring_, reporter_, FeedRounds(wiring_, mesh, layout, std::move(source), options), options);
  }

  std::optional<Batch> next() {
    const auto called = Clock::now();
    own_step_.reset();
    while (true) {
      hear_decisions();
      if (!follower_.end()) reporter_.send(std::nullopt);
      if (follower_.finished()) return finish();
      if (reader_) reader_->read_now(follower_.step());
      if (follower_.may_take()) {
        if (auto arrival = inbox_.try_take()) {
          stats_.taking += arrival->there - called;
          return hand_out(std::move(*arrival));
        }
      }
      wait_for_batch();
    }
  }

  void request_stop() { reporter_.send(feed_protocol::Left{wiring_.rank()}); }

  void close() {
    own_step_.reset();
    if (!follower_.end()) leave();
    end_ = follower_.end();
    stop_reader();
  }

  const std::optional<FeedEnd>& end() const { return end_; }
  bool is_reader() const { return wiring_.is_reader(); }
  FeedStats stats() const {
    FeedStats stats = stats_;
    if (reader_) stats.read = reader_->stats();
    return stats;
  }

 private:
  /// Until the end has come back.
  void leave() {
    const auto deadline = Deadline::after(timeout_);
    auto lacking = reporter_.send(feed_protocol::Left{wiring_.rank()});
    while (lacking && !deadline.expired()) {
      const std::span<Channel* const> room(&lacking.room, lacking.room == nullptr ? 0 : 1);
      wiring_.engine->wait({.publish = room, .allocate = lacking.memory}, deadline);
      lacking = reporter_.send(std::nullopt);
    }
    while (!follower_.end()) {
      hear_decisions();
      while (inbox_.try_take()) {
      }
      if (follower_.end()) break;
      if (lead_is_gone()) follower_.apply(feed_protocol::Ended{gone()});
      else wait(true, deadline, "leaving the feed");
    }
  }

  static FeedWiring wire(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout,
                         const std::shared_ptr<Source>& source, const FeedOptions& options) {
    std::string error;
    std::vector<Audience> audiences;
    try {
      check(*engine, mesh, layout, options);
      audiences = fan_out_audiences(
          layout, mesh, {.readers = options.readers, .divide = options.divide, .host_of = engine->info().host_of});
      const int rank = engine->info().rank;
      const bool reads = std::any_of(audiences.begin(), audiences.end(), [&](const auto& a) { return a.from == rank; });
      if (reads && !source) error = fmt::format("rank {} reads for the feed but was given no source", rank);
    } catch (const InvalidArgument& problem) {
      error = problem.what();
    }
    agree_on(*engine, terms_of(mesh, layout, options, error), Deadline::after(options.timeout));
    return wire_feed(std::move(engine), std::move(audiences), depth_of(mesh, options));
  }

  void hear_decisions() {
    while (const auto event = try_receive(*wiring_.engine, *wiring_.decisions)) {
      if (const auto* granted = std::get_if<feed_protocol::Granted>(&*event)) follower_.apply(*granted);
      if (const auto* ended = std::get_if<feed_protocol::Ended>(&*event)) follower_.apply(*ended);
    }
  }

  std::optional<Batch> finish() {
    end_ = follower_.end();
    stop_reader();
    if (end_->cause != FeedEnd::Cause::failed) return std::nullopt;
    throw_error(end_->error, fmt::format("rank {} could not read step {}: {}", end_->rank, end_->step, end_->message));
  }

  Batch hand_out(Inbox::Arrival arrival) {
    ByteReader envelope(arrival.envelope);
    const auto step = envelope.get<std::int64_t>();
    const auto in_round = envelope.get<std::int64_t>();
    const auto cursor = envelope.get_sized();
    if (step != follower_.step()) envelope.fail(fmt::format("step {} came, step {} was due", step, follower_.step()));
    follower_.advance();
    const auto samples = std::clamp<std::int64_t>(in_round - data_coordinate_ * batch_, 0, batch_);
    ++stats_.batches;
    stats_.samples += samples;
    stats_.bytes += arrival.tensor_bytes;
    stats_.copied_batches += arrival.copied ? 1 : 0;
    own_step_.emplace(trace_, TraceThread::step, TraceKind::step, step, own_.from);
    return {.step = step,
            .samples = samples,
            .content = std::move(arrival.content),
            .cursor = Bytes(cursor.begin(), cursor.end())};
  }

  void wait_for_batch() {
    if (!is_reader()) post("waiting for a batch");
    const auto start = Clock::now();
    const TraceScope scope(trace_, TraceThread::step, follower_.may_take() ? TraceKind::handover : TraceKind::grant,
                           follower_.step(), waiting_for());
    wait(follower_.may_take(), Deadline::after(timeout_), "the feed");
    stats_.waited += Clock::now() - start;
    if (!is_reader()) post("in its own step");
    if (!lead_is_gone()) return;
    hear_decisions();
    // For a batch that may be taken its reader is waited for, who may be another rank.
    if (follower_.end() || (follower_.may_take() && !wiring_.engine->ended(inbox_.channel()))) return;
    throw PeerLost(wiring_.lead(), fmt::format("rank {} left the feed before step {} without ending it", wiring_.lead(),
                                               follower_.step()));
  }

  /// For a decision, or for a batch where that helps: one that may not be used yet, or a stream that has ended, would
  /// wake for nothing.
  void wait(bool for_batch, Deadline deadline, std::string_view what) {
    const std::array<Channel*, 2> channels = {wiring_.decisions.get(), &inbox_.channel()};
    const bool both = for_batch && !wiring_.engine->ended(inbox_.channel());
    while (!wait_a_while({.take = std::span(channels.data(), both ? 2 : 1)}, deadline)) {
      if (deadline.expired()) throw Timeout(explain_wait(*wiring_.engine, what, waiting_for(), timeout_));
      if (poll_) poll_();
    }
  }

  /// Until the deadline or, where there is somebody to poll, for a moment; whether there is something.
  bool wait_a_while(const WaitFor& conditions, Deadline deadline) {
    constexpr Duration moment = std::chrono::milliseconds(50);
    const auto until = poll_ ? Deadline::after(std::min(moment, deadline.remaining())) : deadline;
    return wiring_.engine->wait(conditions, until) != Woken::timeout;
  }

  bool lead_is_gone() { return wiring_.engine->ended(*wiring_.decisions); }
  FeedEnd gone() const {
    return {.cause = FeedEnd::Cause::left, .step = follower_.step(), .rank = wiring_.lead(), .message = {}};
  }

  void stop_reader() {
    if (reader_) reader_->stop();
  }

  void post(std::string_view operation) {
    wiring_.engine->post(Status::make(operation, follower_.step(), waiting_for()));
  }
  /// Its reader, or the lead where the batch may be there but is not granted yet.
  int waiting_for() const { return follower_.may_take() ? own_.from : wiring_.lead(); }

  FeedWiring wiring_;
  Reporter reporter_{wiring_};
  feed_protocol::Follower follower_;
  const Audience& own_;
  Inbox inbox_;
  Duration timeout_;
  std::function<void()> poll_;
  std::int64_t batch_;
  std::int64_t data_coordinate_;
  TraceLog* trace_;
  std::optional<TraceScope> own_step_;  ///< the caller's, between two calls of next()
  FeedStats stats_;
  std::optional<FeedEnd> end_;
  std::optional<FeedReader> reader_;
};

Tensor Batch::tensor(std::string_view path) const {
  const auto specs = content.schema.leaves();
  const auto found = std::ranges::find(specs, path, &LeafSpec::path);
  const auto* leaf = found == specs.end() ? nullptr : &content.leaves[static_cast<std::size_t>(found - specs.begin())];
  const auto* tensor = leaf == nullptr ? nullptr : std::get_if<Tensor>(leaf);
  return tensor != nullptr ? *tensor : tree().tensor(path);
}

Feed::Feed(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
           const FeedOptions& options)
    : impl_(std::make_unique<Impl>(std::move(engine), mesh, layout, std::move(source), options)) {}

Feed::~Feed() {
  try {
    impl_->close();
  } catch (const std::exception&) {
    // The group has ended otherwise, or poll gave up: there is nobody to tell.
  }
}

std::optional<Batch> Feed::next() {
  return impl_->next();
}
void Feed::request_stop() {
  impl_->request_stop();
}
void Feed::close() {
  impl_->close();
}
const std::optional<FeedEnd>& Feed::end() const {
  return impl_->end();
}
FeedStats Feed::stats() const {
  return impl_->stats();
}
bool Feed::is_reader() const {
  return impl_->is_reader();
}

}  // namespace levada
