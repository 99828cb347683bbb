"""Works on one image at a time: recognizes it, checks it, and brings it into a form that every decoder reads alike."""
