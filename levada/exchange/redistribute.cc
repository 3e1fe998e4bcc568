#include "levada/exchange/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/exchange/claims.h"
#include "levada/exchange/exchange_streams.h"

namespace levada {
namespace {

constexpr std::string_view operation = "exchange";

/// What a rank calls, which all must call alike.
enum class Call : std::uint8_t { gather_ownership, redistribute, carry_out };

constexpr std::uint64_t magic = 0x3145'474E'4148'4358;  // "XCHANGE1"

/// What a rank says before anything moves. Borrows its store's name and its claims.
struct Terms {
  Call call = Call::redistribute;
  std::string_view store;
  ErrorKind error = ErrorKind::invalid_argument;
  std::string message;            ///< empty: it is ready
  std::uint64_t fingerprint = 0;  ///< of what it is asked for
  std::uint64_t bytes = 0, max_bytes = 0;
  ByteView claims;  ///< none when a plan is carried out

  Bytes encode() const {
    ByteWriter writer;
    writer.put(magic);
    writer.put(call);
    writer.put_sized(store);
    writer.put(static_cast<std::uint8_t>(error));
    writer.put_sized(message);
    writer.put(fingerprint);
    writer.put(bytes);
    writer.put(max_bytes);
    writer.put_sized(claims);
    return std::move(writer).take();
  }
  /// Empty for bytes that are said in a call of another kind.
  static std::optional<Terms> decode(ByteView all) {
    ByteReader reader(all);
    if (all.size() < sizeof(magic) || reader.get<std::uint64_t>() != magic) return std::nullopt;
    Terms terms;
    terms.call = reader.get_enum(Call::gather_ownership, Call::carry_out, "exchange");
    const ByteView name = reader.get_sized();
    terms.store = {reinterpret_cast<const char*>(name.data()), name.size()};
    const auto error = reader.get<std::uint8_t>();
    if (error < 1 || error > static_cast<std::uint8_t>(ErrorKind::engine)) reader.fail("no such kind of error");
    terms.error = static_cast<ErrorKind>(error);
    terms.message = reader.get_string();
    terms.fingerprint = reader.get<std::uint64_t>();
    terms.bytes = reader.get<std::uint64_t>();
    terms.max_bytes = reader.get<std::uint64_t>();
    terms.claims = reader.get_sized();
    reader.expect_end();
    return terms;
  }

  /// "redistribute() of store 1".
  std::string to_string() const {
    constexpr std::string_view names[] = {"agree()", "redistribute()", "redistribute() of a plan"};
    return fmt::format("{}{}{}", names[static_cast<std::size_t>(call)], store.empty() ? "" : " with ", store);
  }
};

/// Everybody's terms, out of what everybody has said; throws alike on all ranks where one is not ready, or asks for
/// something else.
std::vector<Terms> terms_in(const std::vector<Bytes>& said) {
  std::vector<std::optional<Terms>> decoded;
  for (const Bytes& each : said) decoded.push_back(Terms::decode(each));
  const auto call = [&](std::size_t rank) {
    return decoded[rank] ? decoded[rank]->to_string() : "something that is no exchange";
  };
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    if (decoded[rank] && call(rank) == call(0)) continue;
    throw InvalidArgument(fmt::format(
        "rank 0 calls {}, rank {} {}; all ranks must call the same with the same store, and may give stores "
        "that belong together one name",
        call(0), rank, call(rank)));
  }
  std::vector<Terms> all;
  for (auto& each : decoded) all.push_back(*std::move(each));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].message.empty()) throw_error(all[rank].error, fmt::format("rank {}: {}", rank, all[rank].message));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].fingerprint == all[0].fingerprint) continue;
    throw InvalidArgument(fmt::format("ranks 0 and {} ask for different exchanges; all must ask for the same", rank));
  }
  return all;
}

/// Terms out of what `fill` finds; its exception becomes part of them.
template <typename Fill>
Bytes terms_of(Call call, const SampleStore& store, Fill&& fill) {
  Terms terms{.call = call, .store = store.name()};
  const auto failed = [&](ErrorKind kind, const char* what) {
    return Terms{.call = call, .store = store.name(), .error = kind, .message = what}.encode();
  };
  try {
    terms.bytes = store.bytes();
    terms.max_bytes = store.max_bytes();
    fill(terms);
    return terms.encode();
  } catch (const Error& error) {
    return failed(error.kind(), error.what());
  } catch (const std::exception& error) {
    return failed(ErrorKind::engine, error.what());
  }
}

/// Whether what is thrown now is thrown on all ranks, since it follows from what all have said.
enum class Thrown : std::uint8_t { here_alone, alike };

/// What `work` returns, which is given a Thrown to keep up to date. What this rank throws alone ends the group: the
/// others would wait for it, and it would be behind them in all that follows. The loss of a rank they see themselves.
template <typename Work>
auto exchanged(Engine& engine, Work work) {
  Thrown thrown = Thrown::here_alone;
  try {
    return work(thrown);
  } catch (const PeerLost&) {
    throw;
  } catch (const Error& error) {
    if (thrown == Thrown::here_alone) engine.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    engine.abort(fmt::format("an exchange failed: {}", error.what()));
    throw;
  } catch (...) {
    engine.abort("an exchange failed");
    throw;
  }
}

void check_bounds(const ExchangePlan& plan, const std::vector<Terms>& terms) {
  std::vector<std::uint64_t> coming(terms.size(), 0);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    for (const int to : plan[i].to) coming[static_cast<std::size_t>(to)] += plan[i].bytes;
  }
  for (std::size_t rank = 0; rank < terms.size(); ++rank) {
    const std::uint64_t room = terms[rank].max_bytes - std::min(terms[rank].bytes, terms[rank].max_bytes);
    if (coming[rank] <= room) continue;
    throw InvalidArgument(fmt::format("rank {} is to receive {}, but its store, bounded to {}, has room for {}", rank,
                                      format_bytes(coming[rank]), format_bytes(terms[rank].max_bytes),
                                      format_bytes(room)));
  }
}

void check_ranks(const ExchangePlan& plan, int size) {
  const auto ranks = plan.ranks();
  if (!ranks.empty() && ranks.back() >= size) {
    throw InvalidArgument(fmt::format("the plan names rank {}, but the engine has {}", ranks.back(), size));
  }
}

std::vector<OutgoingStream> outgoing_of(const ExchangePlan& plan, int rank, const SampleStore& store) {
  std::vector<OutgoingStream> streams;
  const SampleStore::Reading here(store);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].from == rank && plan[i].messages > 0) streams.emplace_back(plan, i, here);
  }
  return streams;
}

/// Sends and receives at the same time until both are done. What both sends and receives never waits for space alone.
class Mover {
 public:
  Mover(const std::shared_ptr<Engine>& engine, SampleStore& store, const ExchangePlan& plan,
        std::vector<OutgoingStream> outgoing, const ExchangeOptions& options, ExchangeResult& result)
      : engine_(engine),
        store_(store),
        plan_(plan),
        options_(options),
        result_(result),
        outgoing_(std::move(outgoing)) {
    const int rank = engine_->info().rank;
    std::size_t next_out = 0;
    for (std::size_t i = 0; i < plan.size(); ++i) {  // channels are opened in the order of the plan on all ranks
      const Multicast multicast = plan[i];
      const bool receiver = std::ranges::binary_search(multicast.to, rank);
      if (receiver) {
        coming_.push_back(i);
        coming_bytes_ += multicast.bytes;
      }
      if (multicast.messages == 0 || (!receiver && multicast.from != rank)) continue;
      auto channel = engine_->open(multicast.from, multicast.to, 1);
      if (receiver) receives_.push_back({coming_.size() - 1, std::move(channel)});
      else sends_.push_back({next_out++, std::move(channel), {}, 0, room_of(plan, multicast)});
    }
    // Everybody begins with another receiver.
    const auto beyond =
        std::ranges::find_if(sends_, [&](const Send& send) { return send.channel->to().front() > rank; });
    std::rotate(sends_.begin(), beyond, sends_.end());
  }

  void run() {
    send_some();  // others may wait for it, while there is memory to be found for what comes
    for (const std::size_t multicast : coming_) {
      incoming_.emplace_back(plan_, multicast, store_, copy_mode_for(coming_bytes_));
      incoming_.back().take_over_complete();
    }
    while (next_ < sends_.size() || !active_.empty() || !receives_.empty()) {
      const bool sent = send_some();
      const bool received = receive_some();
      if (sent || received) last_moved_ = Clock::now();
      else wait();
    }
  }

 private:
  struct Send {
    std::size_t stream = 0;
    std::shared_ptr<Channel> channel;
    Block block;  ///< written, to be published when there is room
    std::uint64_t bytes = 0;
    std::uint64_t room = 0;  ///< what it may have on the way: the message that is sent and the one that is written
  };
  struct Receive {
    std::size_t stream = 0;
    std::shared_ptr<Channel> channel;
  };

  /// One message of each stream under way at most. A stream whose end has not been received yet counts as under way, so
  /// that what is on the way stays bounded; it is not waited for at the end.
  bool send_some() {
    bool progress = false;
    blocked_on_memory_ = 0;
    while (next_ < sends_.size() && (active_.empty() || on_the_way_ + sends_[next_].room <= options_.in_flight_bytes)) {
      on_the_way_ += sends_[next_].room;
      active_.push_back(next_++);
    }
    std::erase_if(active_, [&](std::size_t i) {
      Send& send = sends_[i];
      OutgoingStream& stream = outgoing_[send.stream];
      for (;;) {
        if (is_finished(send)) {
          const bool over = next_ == sends_.size() || has_room(send);
          if (over) on_the_way_ -= send.room;
          progress |= over;
          return over;
        }
        if (!send.block) {
          auto block = engine_->try_allocate(stream.next_bytes());
          if (!block) {
            blocked_on_memory_ = stream.next_bytes();
            return false;
          }
          send.bytes = stream.next_bytes();
          stream.read(block->memory().data());
          send.block = std::move(*block);
          progress = true;
        }
        if (!engine_->try_publish(*send.channel, send.block, send.bytes)) return false;
        result_.sent_bytes += send.bytes;
        ++result_.sent_messages;
        progress = true;
      }
    });
    return progress;
  }

  /// The message that is sent and the one that is written, at most.
  static std::uint64_t room_of(const ExchangePlan& plan, const Multicast& multicast) {
    const std::uint64_t chunk = std::min(plan.chunk_bytes(), multicast.bytes);
    return chunk + std::min(chunk, multicast.bytes - chunk);
  }

  bool is_finished(const Send& send) const { return !send.block && outgoing_[send.stream].next_bytes() == 0; }

  /// Whether all that was published has been received, as the window is one message.
  bool has_room(const Send& send) {
    Channel* const channel[] = {send.channel.get()};
    return engine_->wait({.publish = channel}, Deadline::now()) == Woken::ready;
  }

  bool receive_some() {
    bool progress = false;
    std::erase_if(receives_, [&](Receive& receive) {
      IncomingStream& stream = incoming_[receive.stream];
      while (!stream.done()) {
        const auto received = engine_->try_receive(*receive.channel);
        if (received.ended) throw_left(*engine_, receive.channel->from(), "it had sent all of an exchange");
        if (!received.message) return false;
        const ByteView bytes = received.message->bytes;
        result_.received_bytes += bytes.size();
        stream.write(bytes);
        progress = true;
      }
      return true;
    });
    return progress;
  }

  void wait() {
    std::vector<Channel*> receive, publish;
    for (const Receive& each : receives_) receive.push_back(each.channel.get());
    for (const std::size_t i : active_) {
      if (sends_[i].block || is_finished(sends_[i])) publish.push_back(sends_[i].channel.get());
    }
    const int other = receive.empty() ? (publish.empty() ? -1 : publish[0]->to()[0]) : receive[0]->from();
    engine_->post(Status::make(operation, -1, other));
    const auto explain = [&] {
      const auto waited = Clock::now() - last_moved_;
      if (!receive.empty() || !publish.empty()) return explain_wait(*engine_, operation, other, waited);
      return explain_full_memory(*engine_, blocked_on_memory_, operation, waited, {});
    };
    const WaitFor conditions{
        .receive = receive, .publish = publish, .allocate = blocked_on_memory_, .poll = &options_.poll};
    const auto deadline = Deadline::after(options_.timeout - (Clock::now() - last_moved_));
    if (Reminder().wait(*engine_, conditions, deadline, explain) == Woken::timeout) throw Timeout(explain());
  }

  std::shared_ptr<Engine> engine_;
  SampleStore& store_;
  const ExchangePlan& plan_;
  const ExchangeOptions& options_;
  ExchangeResult& result_;
  std::vector<OutgoingStream> outgoing_;
  std::uint64_t coming_bytes_ = 0;
  std::vector<std::size_t> coming_;  ///< multicasts that this rank receives, one an incoming stream
  std::vector<IncomingStream> incoming_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<std::size_t> active_;  ///< of sends_
  std::size_t next_ = 0;             ///< of sends_, not yet begun
  std::uint64_t on_the_way_ = 0;     ///< at most, of active_
  std::uint64_t blocked_on_memory_ = 0;
  Clock::time_point last_moved_ = Clock::now();
};

void move(const std::shared_ptr<Engine>& engine, SampleStore& store, std::vector<OutgoingStream> outgoing,
          const ExchangeOptions& options, ExchangeResult& result) {
  const auto begin = Clock::now();
  const Status before = engine->status(engine->info().rank);
  Mover(engine, store, result.plan, std::move(outgoing), options, result).run();
  engine->post(before);
  result.move_time = Clock::now() - begin;
}

}  // namespace

std::uint64_t suitable_chunk_bytes(const Engine& engine) {
  return std::uint64_t{engine.shares_memory() ? 1u : 16u} << 20;
}

ExchangeResult redistribute(const std::shared_ptr<Engine>& engine, SampleStore& store, const ExchangeRequest& request,
                            const ExchangeOptions& options) {
  return exchanged(*engine, [&](Thrown& thrown) {
    const std::uint64_t chunk_bytes = options.chunk_bytes.value_or(suitable_chunk_bytes(*engine));
    ExchangeResult result;
    const auto begin = Clock::now();
    std::optional<RequestedSamples> requested;
    Bytes claims;
    const Bytes mine = terms_of(Call::redistribute, store, [&](Terms& terms) {
      requested.emplace(request);
      terms.fingerprint = requested->fingerprint() + chunk_bytes;
      claims = encode_claims(store, *requested, request.keys);
      terms.claims = claims;
    });
    result.agreed_bytes = mine.size();
    const auto said = agree(*engine, mine, Deadline::after(options.timeout), operation, &options.poll);
    thrown = Thrown::alike;
    const auto terms = terms_in(said);
    const auto agreed = Clock::now();
    result.agree_time = agreed - begin;
    Claims all(*requested, request.keys);
    for (std::size_t i = 0; i < terms.size(); ++i) all.add(static_cast<int>(i), terms[i].claims);
    const auto asked = all.asked();
    const Ownership ownership = std::move(all).take();
    result.plan =
        plan_exchange(ownership, request, asked, {.host_of = engine->info().host_of, .chunk_bytes = chunk_bytes});
    check_bounds(result.plan, terms);
    thrown = Thrown::here_alone;
    result.plan_time = Clock::now() - agreed;
    move(engine, store, outgoing_of(result.plan, engine->info().rank, store), options, result);
    return result;
  });
}

ExchangeResult carry_out(const std::shared_ptr<Engine>& engine, SampleStore& store, const ExchangePlan& plan,
                         const ExchangeOptions& options) {
  return exchanged(*engine, [&](Thrown& thrown) {
    ExchangeResult result{.plan = plan};
    const auto begin = Clock::now();
    std::vector<OutgoingStream> outgoing;
    const Bytes mine = terms_of(Call::carry_out, store, [&](Terms& terms) {
      check_ranks(plan, engine->info().size);
      terms.fingerprint = plan.fingerprint();
      outgoing = outgoing_of(plan, engine->info().rank, store);
    });
    result.agreed_bytes = mine.size();
    const auto said = agree(*engine, mine, Deadline::after(options.timeout), operation, &options.poll);
    thrown = Thrown::alike;
    check_bounds(plan, terms_in(said));
    thrown = Thrown::here_alone;
    result.agree_time = Clock::now() - begin;
    move(engine, store, std::move(outgoing), options, result);
    return result;
  });
}

Ownership gather_ownership(const std::shared_ptr<Engine>& engine, const SampleStore& store,
                           const ExchangeOptions& options) {
  return exchanged(*engine, [&](Thrown& thrown) {
    Bytes held;
    const Bytes mine = terms_of(Call::gather_ownership, store, [&](Terms& terms) {
      held = store.ownership(engine->info().rank).encode();
      terms.claims = held;
    });
    const auto said =
        agree(*engine, mine, Deadline::after(options.timeout), "agreeing on who holds what", &options.poll);
    thrown = Thrown::alike;
    Ownership all;
    for (const Terms& terms : terms_in(said)) all.merge(Ownership::decode(terms.claims));
    return all;
  });
}

}  // namespace levada
