// A browser starts no worker for a page that was opened from a disk. There, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const scope = frame.contentWindow
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script")
          script.onload = resolve
          script.onerror = () => reject(new Error(`cannot load ${source}`))
          script.src = source
          scope.document.body.append(script)
        })
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      scope.importScripts = (...sources) => sources.reduce((done, each) => done.then(() => load(each)), Promise.resolve())
      this.scope = scope
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
