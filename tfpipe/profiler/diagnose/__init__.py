"""From measured numbers to the bottleneck and to fixes. Pure: nothing here measures."""
