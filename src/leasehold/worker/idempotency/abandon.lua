-- Forgets that a run began, unless it is done or somebody took over. KEYS: the key. ARGV: the run.
local entry = redis.call('HMGET', KEYS[1], 'run', 'done')
if entry[1] == ARGV[1] and entry[2] ~= '1' then
    return redis.call('DEL', KEYS[1])
end
return 0
