// The streams of each kind of stage.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/pipeline/stage_stream.h"

namespace levada::pipeline {

/// Map, Filter, Take, Skip, Dispatch, and what else passes items on as they are.
StagePtr make_map(SettingPtr setting, int stage, StagePtr input);
StagePtr make_filter(SettingPtr setting, int stage, StagePtr input);
StagePtr make_take(SettingPtr setting, int stage, StagePtr input);
StagePtr make_skip(SettingPtr setting, int stage, StagePtr input);
StagePtr make_identity(SettingPtr setting, int stage, StagePtr input);
/// Item i where i mod count is index.
StagePtr make_shard(SettingPtr setting, int stage, StagePtr input, Division division);

StagePtr make_batch(SettingPtr setting, int stage, StagePtr input);
StagePtr make_pack(SettingPtr setting, int stage, StagePtr input);
StagePtr make_zip(SettingPtr setting, int stage, std::vector<StagePtr> inputs);

StagePtr make_flat_map(SettingPtr setting, int stage, StagePtr input);
StagePtr make_unbatch(SettingPtr setting, int stage, StagePtr input);
StagePtr make_shuffle(SettingPtr setting, int stage, StagePtr input, std::uint64_t seed);

/// `stream` as it is, neither counted nor its failures named: of another process, or another's.
StagePtr make_given(SettingPtr setting, int stage, StreamPtr stream);
/// Of a Source, a Transform: `stream`'s failures are the stage's.
StagePtr make_foreign(SettingPtr setting, int stage, StreamPtr stream);
/// The stream of a Transform. What inputs throw comes out as they threw it.
StagePtr make_transform(SettingPtr setting, int stage, std::vector<StagePtr> inputs, const Opening& opening);

/// Items made ahead on a thread of their own. `start` begins it, where the stream is still there.
struct Prefetched {
  StagePtr stream;
  std::function<void()> start;
};
Prefetched make_prefetch(SettingPtr setting, int stage, StagePtr input);

/// All ranks stop at the end of the shortest. What `open_input` throws is an item that fails, on all ranks.
StagePtr make_full_sync(const SettingPtr& setting, int stage, const std::function<StagePtr()>& open_input);

/// `open` makes the stream of pass number i.
StagePtr make_repeat(SettingPtr setting, int stage, std::function<StagePtr(std::int64_t)> open);

/// A Fork, shared by its branches.
class Forked;
std::shared_ptr<Forked> make_fork(SettingPtr setting, int stage, StagePtr input);
/// When all has been restored, a fork before those that come before it.
void settle(Forked& fork);
/// Branches are made before the first item is pulled. `thread`: the number of the one that pulls.
StagePtr make_branch(SettingPtr setting, int stage, std::shared_ptr<Forked> fork, int thread);

}  // namespace levada::pipeline
