// The site's search is a worker, and browsers start none for a page that is read from a disk: there, its script runs in a
// hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!DOCTYPE html>";
      this.scope = new Promise((resolve) => {
        frame.onload = () => {
          const scope = frame.contentWindow;
          scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = scope.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(scope);
          scope.document.body.append(script);
        };
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
