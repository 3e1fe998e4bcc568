#include "levada/base/json.h"
#include "levada/report/feed_report.h"

namespace levada::report {
namespace {

using Json = nlohmann::ordered_json;

Json fields_json(const std::vector<FieldReport>& fields) {
  Json json = Json::object();
  for (const auto& field : fields) {
    json[field.name] = {{"digest", field.digest}, {"dtype", field.dtype}, {"shape", field.shape}};
  }
  return json;
}

Json rank_json(const RankReport& rank) {
  Json coordinates = Json::object();
  for (const auto& [axis, at] : rank.coordinates) coordinates[axis] = at;
  return {{"rank", rank.rank},
          {"coords", coordinates},
          {"batches", rank.batches},
          {"samples", rank.samples},
          {"bytes", rank.bytes},
          {"wait_s", rank.wait_seconds},
          {"seconds", rank.seconds},
          {"digest_s", rank.digest_seconds},
          {"copied_batches", rank.copied_batches},
          {"reader", rank.is_reader},
          {"bytes_sent", rank.bytes_sent},
          {"bytes_read", rank.bytes_read},
          {"bytes_consumed", rank.bytes_consumed},
          {"prepare_bytes", rank.prepare_bytes},
          {"fields", fields_json(rank.field_reports)}};
}

Json to_object(const RunFacts& run) {
  return {{"version", run.version},
          {"host", run.host},
          {"began", run.began},
          {"command", run.command},
          {"tokenizer", run.tokenizer.empty() ? Json() : Json(run.tokenizer)},
          {"seed", run.seed ? Json(*run.seed) : Json()}};
}

}  // namespace

std::string FeedReport::to_json() const {
  Json json = {{"steps", steps},
               {"samples", samples},
               {"tokens", tokens()},
               {"bytes_read", bytes_read()},
               {"bytes_consumed", bytes_consumed},
               {"prepare_bytes", prepare_bytes},
               {"prepare_s", prepare_seconds},
               {"bytes_sent", bytes_sent()},
               {"bytes_delivered", bytes_delivered()},
               {"read_amplification", read_amplification()},
               {"seconds", seconds()},
               {"tokens_per_s", tokens_per_second()},
               {"mesh", mesh},
               {"engine", engine},
               {"engine_choice", engine_choice},
               {"readers", readers},
               {"batch", batch},
               {"seq", sequence},
               {"end", end_cause},
               {"files", files},
               {"documents", documents},
               {"stored_documents", stored_documents},
               {"files_left_out", left_out},
               {"skipped_lines", skipped_lines},
               {"skipped_places", skipped_places},
               {"padding_share", padding_share()},
               {"sources", Json::array()},
               {"run", to_object(run)},
               {"peers_identical", find_difference(ranks, peers).empty()},
               {"ranks", Json::array()}};
  for (const auto& source : sources) {
    json["sources"].push_back(
        {{"name", source.name}, {"samples", source.samples}, {"tokens", source.tokens}, {"share", source.share}});
  }
  for (const auto& rank : ranks) json["ranks"].push_back(rank_json(rank));
  return balance ? with_member(json_text(json), "balance", balance->to_json()) : json_text(json);
}

}  // namespace levada::report
