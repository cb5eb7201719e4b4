// A page that is opened from a folder (file://) may start no worker, and the search is one. Here its script runs in a
// hidden frame, with the messages of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(address, location).href
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach((data) => this.postMessage(data))
      }
      inside.document.body.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
