"""The check of event logs put to the proof: logs of real servers, and of servers with bugs."""
