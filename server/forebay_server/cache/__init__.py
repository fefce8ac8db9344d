"""What is kept on one disk: the books, the room, which pieces go, and the care for the others. On the event loop."""
