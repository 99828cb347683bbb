"""The diagnosis: from a profile to the bottleneck and the fixes. Pure: nothing here measures."""
