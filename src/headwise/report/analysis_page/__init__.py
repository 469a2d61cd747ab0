"""The page of an analysis: functions of the runs for its sections, with templates beside them."""
