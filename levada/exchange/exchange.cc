#include "levada/exchange/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/collective_order.h"
#include "levada/exchange/exchange_rows.h"
#include "levada/exchange/holdings.h"
#include "levada/exchange/transfer_loop.h"

namespace levada {
namespace {

/// The call that a rank makes; all ranks must make the same one.
enum class Call : std::uint8_t { all_gather, redistribute };

std::string_view name_of(Call call) {
  return call == Call::all_gather ? "all_gather()" : "redistribute()";
}

void put_error(ByteWriter& writer, ErrorKind kind, std::string_view message) {
  writer.put(kind);
  writer.put_sized(message);
}

ErrorKind get_error_kind(ByteReader& reader) {
  return reader.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "error");
}

/// The parts of a request in which ranks may differ: a value or hash of each, independent of its order.
using RequestParts = std::array<std::uint64_t, 5>;
constexpr std::array<std::string_view, 5> request_part_names = {"destinations", "keys", "cut_keys", "allow_absent",
                                                                "chunk_bytes"};

/// A rank's message before anything moves. Borrows the store's name and the holdings.
struct Preflight {
  Call call = Call::redistribute;
  std::string_view store;
  std::uint64_t number = 0;  ///< number of this rank's calls so far
  ErrorKind error = ErrorKind::invalid_argument;
  std::string message;  ///< empty if the rank is ready
  RequestParts request{};
  std::uint64_t bytes = 0, max_bytes = 0;
  bool is_repeated = false;  ///< its holdings are those of the previous round
  ByteView held;             ///< holdings, unless is_repeated

  Bytes encode() const {
    ByteWriter writer;
    writer.put(call);
    writer.put_sized(store);
    writer.put(number);
    put_error(writer, error, message);
    for (const std::uint64_t part : request) writer.put(part);
    writer.put(bytes);
    writer.put(max_bytes);
    writer.put(static_cast<std::uint8_t>(is_repeated));
    if (!is_repeated) writer.put_bytes(held);
    return std::move(writer).take();
  }
  static Preflight decode(ByteView all) {
    ByteReader reader(all);
    Preflight read;
    read.call = reader.get_enum(Call::all_gather, Call::redistribute, "exchange");
    read.store = as_text(reader.get_sized());
    read.number = reader.get<std::uint64_t>();
    read.error = get_error_kind(reader);
    read.message = reader.get_string();
    for (std::uint64_t& part : read.request) part = reader.get<std::uint64_t>();
    read.bytes = reader.get<std::uint64_t>();
    read.max_bytes = reader.get<std::uint64_t>();
    read.is_repeated = reader.get<std::uint8_t>() != 0;
    read.held = all.subspan(reader.offset());
    return read;
  }

  /// Returns text such as "redistribute() with store 1".
  std::string call_text() const { return fmt::format("{}{}{}", name_of(call), store.empty() ? "" : " with ", store); }
};

/// Decodes the preflights of all ranks. Throws if a rank is not ready or makes a different request.
std::vector<Preflight> decode_all(std::span<const ByteView> gathered) {
  std::vector<Preflight> all;
  for (const ByteView each : gathered) all.push_back(Preflight::decode(each));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].number == all[0].number) continue;
    throw InvalidArgument(
        fmt::format("rank 0 makes call {} of this group's exchanges, but rank {} makes call {}: an earlier call failed "
                    "on only one of them; end both after such an error, or join a new group",
                    all[0].number, rank, all[rank].number));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].call == all[0].call && all[rank].store == all[0].store) continue;
    throw InvalidArgument(fmt::format(
        "rank 0 calls {}, but rank {} calls {}; all ranks must make the same call with the same store; give "
        "corresponding stores the same name",
        all[0].call_text(), rank, all[rank].call_text()));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].message.empty()) throw_error(all[rank].error, fmt::format("rank {}: {}", rank, all[rank].message));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].request == all[0].request) continue;
    std::vector<std::string_view> differing;
    for (std::size_t part = 0; part < request_part_names.size(); ++part) {
      if (all[rank].request[part] != all[0].request[part]) differing.push_back(request_part_names[part]);
    }
    throw InvalidArgument(fmt::format("ranks 0 and {} pass different {}; all ranks must request the same exchange",
                                      rank, fmt::join(differing, " and ")));
  }
  return all;
}

/// Returns this rank's preflight, filled in by `fill`. An exception from `fill`, or a timeout that is not positive, is
/// reported in it.
template <typename Fill>
Bytes preflight_of(Call call, std::uint64_t number, const SampleStore& store, const ExchangeOptions& options,
                   Fill&& fill) {
  Preflight preflight{.call = call, .store = store.name(), .number = number};
  const auto failed = [&](ErrorKind kind, const char* what) {
    Preflight none{.call = call, .store = store.name(), .number = number, .error = kind, .message = what};
    return none.encode();
  };
  try {
    if (options.timeout <= Duration::zero()) {
      const double seconds = std::chrono::duration<double>(options.timeout).count();
      throw InvalidArgument(fmt::format("timeout must be positive, got {} s", seconds));
    }
    preflight.bytes = store.bytes();
    preflight.max_bytes = store.max_bytes();
    fill(preflight);
    return preflight.encode();
  } catch (const Error& error) {
    return failed(error.kind(), error.what());
  } catch (const std::exception& error) {
    return failed(ErrorKind::engine, error.what());
  }
}

/// Returns how long a rank waits for the others in a call. Replaces an invalid timeout, because the rank still has to
/// report it.
Duration preflight_timeout(const ExchangeOptions& options) {
  return options.timeout > Duration::zero() ? options.timeout : ExchangeOptions().timeout;
}

/// Returns rank 0's answer to all ranks: a no_error byte and the result of `make`, or the Error that `make` throws
/// because of the preflights.
template <typename Make>
std::vector<std::shared_ptr<const Bytes>> answer_or_error(std::size_t ranks, Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    ByteWriter writer;
    put_error(writer, error.kind(), error.what());
    return std::vector(ranks, std::make_shared<const Bytes>(std::move(writer).take()));
  }
}

constexpr std::uint8_t no_error = 0;
/// The byte after no_error. It announces rows that the next round may repeat, rows that it may not, or the rows of the
/// previous round.
enum class Answer : std::uint8_t { rows, rows_of_one_round, repeated };
/// Maximum size of holdings that are kept for the next round.
constexpr std::size_t max_kept_bytes = std::size_t{64} << 20;

/// An error that all ranks throw, after which they can make further calls.
struct SharedError {
  ErrorKind kind;
  std::string message;
};

/// Returns a reader positioned after the answer's first byte. Throws SharedError if the answer is an error.
ByteReader reader_of(ByteView answer) {
  ByteReader reader(answer);
  if (reader.get<std::uint8_t>() == no_error) return reader;
  ByteReader again(answer);
  const ErrorKind kind = get_error_kind(again);
  throw SharedError{kind, again.get_string()};
}

/// Returns the result of `work`. An exception that only this rank throws ends the group: the others would wait for this
/// rank, which would be one call behind from then on. PeerLost does not end the group, because the others detect a lost
/// rank themselves, and rank 0 reports a rank that has left.
template <typename Work>
auto exchanged(Engine& engine, Work work) {
  try {
    return work();
  } catch (const SharedError& error) {
    throw_error(error.kind, error.message);
  } catch (const PeerLost&) {
    throw;
  } catch (const Timeout& timeout) {
    engine.abort(fmt::format("an exchange with Timeout: {}", timeout.what()), ErrorKind::timeout);
    throw;
  } catch (const Error& error) {
    engine.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    engine.abort(fmt::format("an exchange failed: {}", error.what()));
    throw;
  } catch (...) {
    engine.abort("an exchange failed");
    throw;
  }
}

/// Returns the bytes that each rank will receive.
std::vector<std::uint64_t> coming_bytes(const ExchangePlan& plan, std::size_t ranks) {
  std::vector<std::uint64_t> coming(ranks, 0);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    for (const int to : plan[i].to) coming[static_cast<std::size_t>(to)] += plan[i].bytes;
  }
  return coming;
}

void check_bounds(const std::vector<std::uint64_t>& coming, const std::vector<Preflight>& preflights) {
  for (std::size_t rank = 0; rank < preflights.size(); ++rank) {
    const std::uint64_t room =
        preflights[rank].max_bytes - std::min(preflights[rank].bytes, preflights[rank].max_bytes);
    if (coming[rank] <= room) continue;
    throw InvalidArgument(fmt::format("rank {} is to receive {}, but its store, bounded to {}, has room for {}", rank,
                                      format_bytes(coming[rank]), format_bytes(preflights[rank].max_bytes),
                                      format_bytes(room)));
  }
}

RequestParts parts_of(const SampleIndex& index, const ExchangeRequest& request, std::uint64_t chunk_bytes) {
  const auto fingerprint = [](const std::vector<std::string>& keys) {
    std::uint64_t sum = keys.size();
    for (const std::string& key : keys) sum += hash64(as_bytes(key));
    return sum;
  };
  return {index.fingerprint(), fingerprint(request.keys), fingerprint(request.cut_keys), request.allow_absent ? 1u : 0u,
          chunk_bytes};
}

std::uint64_t suitable_chunk_bytes(const Engine& engine) {
  return std::uint64_t{engine.shares_memory() ? 1u : 16u} << 20;
}

}  // namespace

/// State that a round leaves for the next one. Either all ranks have it or none, because a failure on one fails all.
struct Exchange::Round {
  std::optional<RequestParts> request;  ///< empty if there was no previous round
  Holdings holdings;
  ExchangeRows rows;
  ExchangeResult planned;  ///< the plan's figures for all ranks
  // Only on rank 0, by rank.
  std::vector<Bytes> held;
  std::vector<std::uint64_t> coming;
};

Exchange::Exchange(std::shared_ptr<Engine> engine) : engine_(std::move(engine)), preflight_(engine_, "an exchange") {
  const auto [rank, size] = std::pair(engine_->info().rank, engine_->info().size);
  if (!engine_->shares_memory()) return;
  for (int from = 0; from < size && size > 1; ++from) {
    std::vector<int> others;
    for (int to = 0; to < size; ++to) {
      if (to != from) others.push_back(to);
    }
    constexpr int window = 2;  // the message that was sent and the one being written
    to_all_.push_back(engine_->open(from, others, window));
  }
}

Exchange::~Exchange() = default;

const SampleIndex& Exchange::index_of(const ExchangeRequest& request) {
  if (!index_ || index_->destinations() != request.destinations) {
    index_ = std::make_unique<const SampleIndex>(request.destinations);
    ids_.reset();
  }
  return *index_;
}

std::vector<std::shared_ptr<const Bytes>> Exchange::plan_for_all(std::span<const ByteView> gathered,
                                                                 const ExchangeRequest& request, Round& last,
                                                                 Round& now) {
  const auto preflights = decode_all(gathered);
  for (const Preflight& each : preflights) {
    if (!each.is_repeated) continue;
    if (last.request != each.request)
      throw CorruptMessage(0, "a rank repeats a round of an exchange that does not exist");
  }
  if (std::ranges::all_of(preflights, &Preflight::is_repeated)) {
    check_bounds(last.coming, preflights);
    now.held = std::move(last.held);
    now.coming = std::move(last.coming);
    ByteWriter writer;
    writer.put(no_error);
    writer.put(Answer::repeated);
    return std::vector(preflights.size(), std::make_shared<const Bytes>(std::move(writer).take()));
  }
  constexpr std::size_t max_kept_ids = std::size_t{1} << 16;
  auto ids = ids_ ? *ids_ : HoldingsTable::ids_of(*index_);
  if (!ids_ && index_->size() <= max_kept_ids) ids_ = ids;
  HoldingsTable table(*index_, request.keys, std::move(ids));
  for (std::size_t rank = 0; rank < preflights.size(); ++rank) {
    now.held.push_back(preflights[rank].is_repeated
                           ? std::move(last.held[rank])
                           : Bytes(preflights[rank].held.begin(), preflights[rank].held.end()));
    table.add(static_cast<int>(rank), now.held.back());
  }
  const auto requested = table.requested();
  const ExchangePlan plan = plan_exchange(std::move(table).take(), request, requested, engine_->info().host_of);
  now.coming = coming_bytes(plan, preflights.size());
  check_bounds(now.coming, preflights);
  ByteWriter head;
  head.put(no_error);
  std::size_t kept = 0;
  for (const Bytes& held : now.held) kept += held.size();
  head.put(kept > max_kept_bytes ? Answer::rows_of_one_round : Answer::rows);
  head.put(std::uint64_t{plan.size()});
  head.put(plan.moved_bytes());
  head.put(plan.lower_bound_bytes());
  head.put(plan.delivered_bytes());
  return encode_rows(plan, engine_->info().size, !to_all_.empty(), head.view(), table.contents());
}

ExchangeResult Exchange::redistribute(SampleStore& store, const ExchangeRequest& request,
                                      const ExchangeOptions& options) {
  const OneCaller::Call call(callers_, "this exchange");
  return exchanged(*engine_, [&] {
    const auto begin = Clock::now();
    const std::uint64_t chunk_bytes = options.chunk_bytes.value_or(suitable_chunk_bytes(*engine_));
    if (!to_all_.empty()) store.use_memory_of(engine_);
    const auto last = last_ ? std::move(last_) : std::make_unique<Round>();
    auto now = std::make_unique<Round>();
    const Bytes mine = preflight_of(Call::redistribute, ++calls_, store, options, [&](Preflight& preflight) {
      if (chunk_bytes == 0) throw InvalidArgument("chunk_bytes must be positive");
      preflight.request = parts_of(index_of(request), request, chunk_bytes);
      now->request = preflight.request;
      const bool is_same_request = last->request == now->request;
      const bool is_same_store = is_same_request && store.version() == last->holdings.version;
      now->holdings =
          is_same_store ? std::move(last->holdings) : holdings_of(store, *index_, request.keys, last->holdings.samples);
      preflight.is_repeated = is_same_store || (is_same_request && now->holdings.bytes == last->holdings.bytes);
      preflight.held = now->holdings.bytes;
    });
    Duration plan_time{};
    const auto answer = [&](std::span<const ByteView> gathered) {
      const auto planning = Clock::now();
      auto answers = answer_or_error(gathered.size(), [&] { return plan_for_all(gathered, request, *last, *now); });
      plan_time = Clock::now() - planning;
      return answers;
    };
    CollectiveOrder order(*engine_, &options.poll);
    const auto poll = order.as_poll();
    const Lease reply = preflight_.call(mine, answer, preflight_timeout(options), &poll);
    ByteReader reader = reader_of(reply.bytes);
    const auto kind = reader.get_enum(Answer::rows, Answer::repeated, "answer");
    if (kind == Answer::repeated) {
      now->rows = std::move(last->rows);
      now->planned = last->planned;
    } else {
      now->planned.multicasts = reader.get<std::uint64_t>();
      now->planned.moved_bytes = reader.get<std::uint64_t>();
      now->planned.lower_bound_bytes = reader.get<std::uint64_t>();
      now->planned.delivered_bytes = reader.get<std::uint64_t>();
      now->rows = decode_rows(reply.bytes.subspan(reader.offset()), engine_->info().rank, engine_->info().size,
                              index_->size(), !to_all_.empty());
    }
    const auto agreed = Clock::now();
    ExchangeResult result = now->planned;
    result.agreed_bytes = mine.size();
    result.plan_time = plan_time;
    result.agree_time = agreed - begin - plan_time;
    OperationStatus status(*engine_, "exchange");
    status.post();
    TransferLoop({*engine_, store, now->rows, *index_, now->holdings, options, chunk_bytes}, to_all_).run(result);
    result.move_time = Clock::now() - agreed;
    if (kind != Answer::rows_of_one_round) last_ = std::move(now);
    return result;
  });
}

SampleDirectory Exchange::all_gather(const SampleStore& store, const ExchangeOptions& options) {
  const OneCaller::Call call(callers_, "this exchange");
  return exchanged(*engine_, [&] {
    auto last = std::move(last_);  // dropped if the call fails, as redistribute() drops it on other ranks
    Bytes held;
    const Bytes mine = preflight_of(Call::all_gather, ++calls_, store, options, [&](Preflight& preflight) {
      held = store.directory(engine_->info().rank).encode();
      preflight.held = held;
    });
    const auto merge = [](std::span<const ByteView> gathered) {
      SampleDirectory all;
      for (const Preflight& each : decode_all(gathered)) all.merge(SampleDirectory::decode(each.held));
      ByteWriter writer;
      writer.put(no_error);
      writer.put_bytes(all.encode());
      return std::vector(gathered.size(), std::make_shared<const Bytes>(std::move(writer).take()));
    };
    const auto answer = [&](std::span<const ByteView> gathered) {
      return answer_or_error(gathered.size(), [&] { return merge(gathered); });
    };
    CollectiveOrder order(*engine_, &options.poll);
    const auto poll = order.as_poll();
    const Lease reply = preflight_.call(mine, answer, preflight_timeout(options), &poll);
    auto all = SampleDirectory::decode(reply.bytes.subspan(reader_of(reply.bytes).offset()));
    last_ = std::move(last);
    return all;
  });
}

}  // namespace levada
