open(GRADES, "w").write("8,8")
