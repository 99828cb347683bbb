"""What can go wrong before the first step, found before a minute of an accelerator is paid for."""
