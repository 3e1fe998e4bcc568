// This process's engine, as held by Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "levada/base/error.h"
#include "levada/engine/engine.h"
#include "levada/exchange/exchange.h"
#include "python/src/base/process.h"
#include "python/src/batch/batch_memory.h"

namespace levada::python {

/// Makes unforkable() report that this process must not be forked into one that uses Levada, until `what` is destroyed.
void keep_from_forking(const std::shared_ptr<const void>& what);

/// An engine that can be left while other objects still hold it, and that a forked child cannot use. The GIL guards it.
class Membership {
 public:
  explicit Membership(std::shared_ptr<Engine> engine)
      : engine_(std::move(engine)), memory_(std::make_shared<BatchMemory>(engine_)) {
    keep_from_forking(engine_);
  }
  Membership(Membership&&) = default;
  Membership& operator=(Membership&&) = delete;
  /// Must be called with the GIL, which it releases: the engine may wait for messages, and the threads that deliver
  /// them need the GIL.
  ~Membership() { drop(); }

  /// Returns the engine, which lives as long as the caller keeps the GIL. Throws as shared() does.
  Engine& engine() const { return *shared(); }
  /// Throws Unsupported in a forked child and after leave(). For a call without the GIL, pass a copy to
  /// EngineWithoutGil.
  const std::shared_ptr<Engine>& shared() const {
    if (current_process() != process_) {
      throw Unsupported(
          "this process was forked from a rank and is none itself; start feeds before forking only in "
          "the rank, and use them there");
    }
    if (!engine_) throw Unsupported("this rank has left its job");
    return engine_;
  }
  /// Returns this rank's end of exchanges. The first call creates it and is collective. With the GIL.
  std::shared_ptr<Exchange> exchange() {
    const auto& engine = shared();
    if (!exchange_) exchange_ = std::make_shared<Exchange>(engine);
    return exchange_;
  }
  /// Calls Exchange::skip(). With the GIL.
  void skip_exchange() { exchange()->skip(); }
  /// Returns the memory in which this process makes batches for feeds of this job. May be called in any process, even
  /// after leave().
  const std::shared_ptr<BatchMemory>& batch_memory() const { return memory_; }
  /// With the GIL, which it releases while the engine ends.
  void leave() {
    if (current_process() == process_) drop();
  }

 private:
  void drop() {
    if (!engine_) return;
    auto exchange = std::move(exchange_);
    auto engine = std::move(engine_);
    const nanobind::gil_scoped_release released;
    exchange.reset();
    engine.reset();
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<BatchMemory> memory_;
  pid_t process_ = current_process();
};

/// Releases the GIL for calls of an engine, and keeps the engine even if another thread leaves the job during the call.
/// That thread may leave this object with the last reference, so it drops the engine before it takes the GIL again.
class EngineWithoutGil {
 public:
  /// With the GIL.
  explicit EngineWithoutGil(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const std::shared_ptr<Engine>& shared() const { return engine_; }
  Engine& operator*() const { return *engine_; }
  Engine* operator->() const { return engine_.get(); }

 private:
  nanobind::gil_scoped_release released_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace levada::python
