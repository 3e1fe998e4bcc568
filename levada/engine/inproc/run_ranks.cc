#include <algorithm>
#include <exception>
#include <mutex>

#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/inproc/inproc.h"

namespace levada::inproc {
namespace {

struct Failed {
  std::exception_ptr error;
  bool is_engine_error = false;
  std::string message;
  bool is_echo = false;  ///< whether it repeats another rank's abort
};

Failed describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const EngineError& e) {
    return {error, true, e.what()};
  } catch (const std::exception& e) {
    return {error, false, e.what()};
  } catch (...) {
    return {error, false, "an exception of unknown type"};
  }
}

/// Returns the message that the group's calls throw after an abort; empty if it has not been aborted.
std::string abort_message(Engine& engine) {
  const auto cause = engine.cause();
  return cause && cause->kind == ErrorKind::engine ? cause->text() : std::string();
}

}  // namespace

void run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options) {
  std::mutex mutex;
  std::vector<Failed> failures;  // in order of time
  const auto run_one = [&](const std::shared_ptr<Engine>& engine) {
    try {
      body(engine);
    } catch (...) {
      Failed failed = describe(std::current_exception());
      const std::lock_guard lock(mutex);
      failed.is_echo = failed.is_engine_error && failed.message == abort_message(*engine);
      engine->abort(failed.message);
      failures.push_back(std::move(failed));
    }
  };
  auto engines = make_group(size, options);
  ThreadGroup threads;
  try {
    for (auto& engine : engines) {
      threads.start("a rank", [&run_one, engine] { run_one(engine); });
      engine.reset();
    }
  } catch (const EngineError& refusal) {
    const auto& without_thread =
        *std::find_if(engines.begin(), engines.end(), [](const auto& engine) { return engine; });
    without_thread->abort(refusal.what());
    throw;
  }
  threads.join();
  for (const Failed& failed : failures) {
    if (!failed.is_echo) std::rethrow_exception(failed.error);
  }
  if (!failures.empty()) std::rethrow_exception(failures.front().error);
}

}  // namespace levada::inproc
