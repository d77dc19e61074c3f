// A classifier's answer: a headline, a bar for each class, and attention maps.

import { fetchAttention, fetchPrediction } from "./api.js";
import { clearAttention, setUpAttention, showAttention, showAttentionLoading, showModelInput } from "./attention.js";
import { clearPrediction, describePrediction, MAX_CLASSES, showPrediction } from "./predictions.js";

export const classification = {
  verb: "classify",
  doing: "Classifying",
  setUp: setUpAttention,

  /** Without attention maps, the prediction has to bring the model's input along. */
  fetch(image, model) {
    const top = Math.min(MAX_CLASSES, model.classes.length);
    return fetchPrediction(image, { model: model.name, top, seen: !model.views.length });
  },

  caption: () => "",
  describe: ({ answers }, model) => describePrediction(answers, model),
  show: ({ answers }, model) => showPrediction(answers, model),

  async showDetails({ image, answer }, text, model, signal) {
    showAttentionLoading(model);
    await (model.views.length
      ? showAttention(await fetchAttention(image, model.name, signal), text, signal)
      : showModelInput(answer.seen, text, signal));
  },

  clear: clearPrediction,
  clearDetails: clearAttention,
};
